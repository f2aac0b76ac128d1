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
    # One patch, which costs the API server less than an ApplyConfiguration. Lists of objects as values end its handler (kubernetes #142181).
    - patchType: JSONPatch
      jsonPatch:
        expression: |-
          !(variables.isRewritten && variables.isSame) ? [JSONPatch{op: 'test', path: '/kind', value: 'Pod'}].filter(p, false) : (
          (request.operation != 'CREATE' ? [JSONPatch{op: 'test', path: '/kind', value: 'Pod'}].filter(p, false) : (
          [JSONPatch{op: 'add', path: '/metadata/annotations', value: {}}].filter(p, !has(object.metadata.annotations))
          + [JSONPatch{op: 'add', path: '/spec/resourceClaims', value: []}].filter(p, !has(object.spec.resourceClaims))
          + [JSONPatch{op: 'add', path: '/metadata/annotations/' + jsonpatch.escapeKey('gpu-device-plugin/asked'),
              value: variables.asking.filter(c, mem(c) > 0).map(c,
                c.name + ': ' + string(mem(c)) + (core(c) > 0 ? ', ' + string(core(c)) + ' %' : '')).join('; ')}]
          {{- with .Values.dra.schedulerName }}
          + [JSONPatch{op: 'replace', path: '/spec/schedulerName', value: {{ squote . }}}].filter(p, object.spec.schedulerName == 'default-scheduler')
          {{- end }}
          + variables.claims.map(n, JSONPatch{op: 'add', path: '/spec/resourceClaims/-',
              value: Object.spec.resourceClaims{name: n, resourceClaimTemplateName: 'gpu-slice'}})
          {{- range $list, $path := dict "apps" "containers" "inits" "initContainers" }}
          + lists.range(variables.{{ $list }}.size()).filter(i, variables.{{ $list }}Claims[i] != '' && !has(variables.{{ $list }}[i].resources.claims)).map(i,
            JSONPatch{op: 'add', path: '/spec/{{ $path }}/' + string(i) + '/resources/claims', value: []})
          + lists.range(variables.{{ $list }}.size()).filter(i, variables.{{ $list }}Claims[i] != '').map(i,
            JSONPatch{op: 'add', path: '/spec/{{ $path }}/' + string(i) + '/resources/claims/-',
              value: Object.spec.{{ $path }}.resources.claims{name: variables.{{ $list }}Claims[i]}})
          {{- end }}))
          {{- range $list, $path := dict "apps" "containers" "inits" "initContainers" }}
          {{- range $side := list "limits" "requests" }}
          {{- range $name := list "aliyun.com/gpu-mem" "aliyun.com/gpu-core.percentage" }}
          + lists.range(variables.{{ $list }}.size()).filter(i, '{{ $name }}' in variables.{{ $list }}[i].?resources.?{{ $side }}.orValue({})).map(i,
            JSONPatch{op: 'remove', path: '/spec/{{ $path }}/' + string(i) + '/resources/{{ $side }}/' + jsonpatch.escapeKey('{{ $name }}')})
          {{- end }}
          {{- end }}
          {{- end }}
          )
{{- end }}

{{/*
The validation of pods that the policy `slices` has left as they are. It is the last of the rules at submission, which say
more, and stands with the rules for claims where these are all off.
*/}}
{{- define "gpu-device-plugin.unclaimable" -}}
# What the policy `slices` has left as it is would stay Pending: nodes of this namespace's pods have no units.
- message: this request cannot become a claim
  expression: |-
    namespaceObject.metadata.?labels[?'gpu-device-plugin/allocation-api'].orValue('') != 'dra'
    || !variables.asking.exists(c, {{ include "gpu-device-plugin.cel" "mem(c)" }} > 0)
  messageExpression: |-
    'this request cannot become a claim, which namespace ' + namespaceObject.metadata.name + ' uses: '
    + (variables.cards > {{ include "gpu-device-plugin.mostCards" . }}
      ? 'label aliyun.com/gpu-count=' + variables.label + ', and a claim has at most {{ include "gpu-device-plugin.mostCards" . }} cards'
      : variables.asking.exists(c, {{ include "gpu-device-plugin.cel" "mem(c)" }} > 999999999)
      ? 'aliyun.com/gpu-mem is larger than any card'
      : 'it breaks a rule that policies.requests switches off')
{{- end }}
