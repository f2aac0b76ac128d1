{{/* What classic requests become with dynamic resource allocation (docs/dra.md), as CEL. */}}

{{/* A claim's name in its pod: slice-<units>-<percent>[-x<cards>]-<c or i><index of the container>. */}}
{{- define "gpu-device-plugin.claimName" -}}
^slice-[1-9][0-9]{0,8}-(0|[1-9][0-9]?|100)(-x[1-9][0-9]?)?-[ci][0-9]{1,4}$
{{- end }}

{{/* Does container c hold a slice by a claim? */}}
{{- define "gpu-device-plugin.holdsClaim" -}}
c.?resources.?claims.orValue([]).exists(k, k.name.matches('{{ include "gpu-device-plugin.claimName" . }}'))
{{- end }}

{{/* The names of the slices that a container (CEL) holds by claims. */}}
{{- define "gpu-device-plugin.sliceClaims" -}}
{{ . }}.?resources.?claims.orValue([]).map(k, k.name).filter(n, n.matches('{{ include "gpu-device-plugin.claimName" . }}'))
{{- end }}

{{/* The claims of .pod (CEL) whose names tell slices, whether any container names them or not. */}}
{{- define "gpu-device-plugin.podSlices" -}}
{{ . }}.spec.?resourceClaims.orValue([]).filter(k, k.name.matches('{{ include "gpu-device-plugin.claimName" . }}'))
{{- end }}

{{/* How many cards a claim has at most: AllocationResultsMaxSize of resource.k8s.io/v1. */}}
{{- define "gpu-device-plugin.mostCards" -}}32{{- end }}

{{/* Of a pod's request: is every amount whole, and the request no other than the limit? Else the API server refuses it. */}}
{{- define "gpu-device-plugin.wholeAmounts" -}}
variables.asking.all(c, ['aliyun.com/gpu-mem', 'aliyun.com/gpu-core.percentage'].all(r,
  quantity(limits(c)[?r].orValue('0')).isInteger()
  && (r in limits(c)) == (r in c.?resources.?requests.orValue({}))
  && quantity(limits(c)[?r].orValue('0')).compareTo(quantity(c.?resources.?requests[?r].orValue('0'))) == 0))
{{- end }}

{{/* Is there a rule of rules.yaml that the request breaks? */}}
{{- define "gpu-device-plugin.breaksRule" -}}
{{- $rules := list }}
{{- range (.Files.Get "rules.yaml" | fromYaml).requests }}
{{- $bad := .bad | trim }}
{{- $rules = append $rules (ternary (printf "(%s)" $bad) (printf "variables.asking.exists(c, %s)" $bad) (default false .whole)) }}
{{- end }}
{{- join "\n|| " $rules }}
{{- end }}

{{/* The policy for pods, with the short forms of rules.yaml. */}}
{{- define "gpu-device-plugin.slicesPolicy" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata:
  name: {{ include "gpu-device-plugin.fullname" . }}-slices
  labels:
    {{- include "gpu-device-plugin.labels" . | nindent 4 }}
spec:
  failurePolicy: Fail
  reinvocationPolicy: IfNeeded
  matchConstraints:
    resourceRules:
      - apiGroups: [""]
        apiVersions: [v1]
        operations: [CREATE, UPDATE]
        resources: [pods]
  matchConditions:
    - name: asks-for-a-slice
      expression: |-
        {{- include "gpu-device-plugin.asks" (dict "pod" "object" "macro" "exists") | nindent 8 }}
    # `kubectl apply` of a pod that was rewritten sends the classic request again.
    - name: is-new-or-was-rewritten
      expression: |-
        request.operation == 'CREATE' || oldObject.spec.?resourceClaims.orValue([]).exists(k,
          k.name.matches('{{ include "gpu-device-plugin.claimName" . }}'))
  variables:
    - name: apps
      expression: object.spec.containers
    - name: inits
      expression: object.spec.?initContainers.orValue([])
    {{- include "gpu-device-plugin.ruleVariables" (dict "root" . "pod" "object") | nindent 4 }}
    - name: isRewritten
      expression: |-
        variables.cards <= {{ include "gpu-device-plugin.mostCards" . }}
        && ({{ include "gpu-device-plugin.wholeAmounts" . | nindent 8 | trim }})
        && variables.asking.exists(c, mem(c) > 0) && variables.asking.all(c, mem(c) < 1000000000)
        && !({{ include "gpu-device-plugin.breaksRule" . | nindent 8 | trim }})
    {{- range $kind := list "apps" "inits" }}
    # What each container asks, in the words of a claim's name; nothing where it asks for nothing, or for 0.
    - name: {{ $kind }}Shapes
      expression: |-
        !variables.isRewritten ? [''].filter(s, false) : variables.{{ $kind }}.map(c,
          mem(c) == 0 ? ''
          : 'slice-' + string(mem(c)) + '-' + string(core(c))
            + (variables.cards > 1 ? '-x' + string(variables.cards) : ''))
    {{- end }}
    - name: appsClaims
      expression: |-
        lists.range(variables.appsShapes.size()).map(i,
          variables.appsShapes[i] == '' ? '' : variables.appsShapes[i] + '-c' + string(i))
    # An ordinary init container has ended before the app containers start: it shares a claim of its shape.
    - name: initsClaims
      expression: |-
        lists.range(variables.initsShapes.size()).map(i,
          variables.initsShapes[i] == '' ? ''
          : variables.inits[i].?restartPolicy.orValue('') != 'Always' && variables.initsShapes[i] in variables.appsShapes
          ? variables.initsShapes[i] + '-c' + string(variables.appsShapes.indexOf(variables.initsShapes[i]))
          : variables.initsShapes[i] + '-i' + string(i))
    - name: claims
      expression: |-
        (variables.appsClaims + variables.initsClaims.filter(n, !(n in variables.appsClaims))).filter(n, n != '')
    # Another amount than before is left as it is, and the API server refuses the change.
    - name: isSame
      expression: |-
        request.operation == 'CREATE' || variables.claims.all(n,
          oldObject.spec.?resourceClaims.orValue([]).exists(k, k.name == n))
  mutations:
    # Lists of objects are applied: as values of a JSON patch they end the API server's handler (kubernetes #142181).
    - patchType: ApplyConfiguration
      applyConfiguration:
        expression: |-
          !variables.isRewritten || request.operation != 'CREATE' ? Object{} : Object{
            metadata: Object.metadata{
              annotations: {'gpu-device-plugin/asked': variables.asking.filter(c, mem(c) > 0).map(c,
                c.name + ': ' + string(mem(c)) + (core(c) > 0 ? ', ' + string(core(c)) + ' %' : '')).join('; ')}
            },
            spec: Object.spec{
              {{- with .Values.dra.schedulerName }}
              schedulerName: object.spec.schedulerName == 'default-scheduler' ? {{ squote . }} : object.spec.schedulerName,
              {{- end }}
              resourceClaims: variables.claims.map(n,
                Object.spec.resourceClaims{name: n, resourceClaimTemplateName: 'gpu-slice'}),
              containers: lists.range(variables.apps.size()).filter(i, variables.appsClaims[i] != '').map(i,
                Object.spec.containers{
                  name: variables.apps[i].name,
                  resources: Object.spec.containers.resources{
                    claims: [Object.spec.containers.resources.claims{name: variables.appsClaims[i]}]}}),
              initContainers: lists.range(variables.inits.size()).filter(i, variables.initsClaims[i] != '').map(i,
                Object.spec.initContainers{
                  name: variables.inits[i].name,
                  resources: Object.spec.initContainers.resources{
                    claims: [Object.spec.initContainers.resources.claims{name: variables.initsClaims[i]}]}})
            }
          }
    - patchType: JSONPatch
      jsonPatch:
        expression: |-
          !(variables.isRewritten && variables.isSame) ? [JSONPatch{op: 'test', path: '/kind', value: 'Pod'}].filter(p, false) : (
          {{- $terms := list }}
          {{- range $kind := list (dict "list" "apps" "path" "containers") (dict "list" "inits" "path" "initContainers") }}
          {{- range $side := list "limits" "requests" }}
          {{- range $name := list "aliyun.com/gpu-mem" "aliyun.com/gpu-core.percentage" }}
          {{- $terms = append $terms (printf "lists.range(variables.%s.size()).filter(i, '%s' in variables.%s[i].?resources.?%s.orValue({})).map(i,\n  JSONPatch{op: 'remove', path: '/spec/%s/' + string(i) + '/resources/%s/' + jsonpatch.escapeKey('%s')})" $kind.list $name $kind.list $side $kind.path $side $name) }}
          {{- end }}
          {{- end }}
          {{- end }}
          {{- join "\n+ " $terms | nindent 10 }}
          )
{{- end }}
