{{/* Writes out the short forms of rules.yaml. */}}
{{- define "gpu-device-plugin.cel" -}}
{{- $cel := regexReplaceAll `mem\((\w+)\)` . `quantity(limits(${1})[?'aliyun.com/gpu-mem'].orValue('0')).asInteger()` }}
{{- $cel = regexReplaceAll `core\((\w+)\)` $cel `quantity(limits(${1})[?'aliyun.com/gpu-core.percentage'].orValue('0')).asInteger()` }}
{{- $cel = regexReplaceAll `gpus\(([\w.\[\]]+)\)` $cel `(${1}.?resources.?limits.orValue({}).map(r, r).filter(r, (r in GPU-NAMES || r.startsWith('nvidia.com/mig-')) && quantity(${1}.resources.limits[r]).isGreaterThan(quantity('0')))SLICE-CLAIMS(${1}))` }}
{{- $cel = regexReplaceAll `limits\((\w+)\)` $cel `${1}.?resources.?limits.orValue({})` }}
{{- $cel = regexReplaceAll `ours\(([\w.]+)\)` $cel `('..' in ${1}.split('/') || ['/etc/ld.so.preload/', '/etc/ld-nix.so.preload/', '/run/gpu-device-plugin/', '/var/run/gpu-device-plugin/', '/usr/local/lib/gpu-device-plugin/'].exists(our, ('/' + ${1}.split('/').filter(s, !(s in ['', '.'])).join('/') + '/').startsWith(our)))` }}
{{- $cel = regexReplaceAll `reaches\((\w+)\)` $cel `[${1}.split('/').filter(s, !(s in ['', '.'])).map(s, s + '/').join('')].exists(at, variables.directories.exists(our, ('/' + at).startsWith(our) || our.startsWith('/' + at)))` }}
{{- $cel }}
{{- end }}

{{/*
The containers of .pod (CEL) that ask for any of our resources: .macro exists, or filter. With .claims also those
whose request was made into a claim.
*/}}
{{- define "gpu-device-plugin.asks" -}}
({{ .pod }}.spec.containers + {{ .pod }}.spec.?initContainers.orValue([])).{{ .macro }}(c,
  ['aliyun.com/gpu-mem', 'aliyun.com/gpu-core.percentage', 'aliyun.com/gpu-count'].exists(r,
    r in c.?resources.?limits.orValue({}))
  {{- if .claims }}
  || {{ include "gpu-device-plugin.holdsClaim" . }}
  {{- end }})
{{- end }}

{{/*
The names of GPU resources in CEL, but for those of MIG profiles: the usual ones, those of whole cards by claims (each
DeviceClass has a name of its own beside the one that it is given), and those that the files of config.map make. Other resources of nvidia.com (gpumem, hostdev) are no GPUs.
*/}}
{{- define "gpu-device-plugin.gpuNames" -}}
{{- $found := list "aliyun.com/gpu-mem" "aliyun.com/gpu" "nvidia.com/gpu" "nvidia.com/gpu.shared" }}
{{- with .Values.dra.wholeCards }}{{ $found = concat $found (list . "deviceclass.resource.kubernetes.io/gpu-card") }}{{ end }}
{{- range .Values.config.map }}
{{- $file := . }}
{{- if kindIs "string" . }}{{ $file = fromYaml . }}{{ end }}
{{- $given := concat (((($file).resources).gpus) | default list) (((($file).resources).mig) | default list) }}
{{- $given = concat $given ((((($file).sharing).timeSlicing).resources) | default list) ((((($file).sharing).mps).resources) | default list) }}
{{- range $given }}
{{- range compact (list .name .rename) }}
{{- $name := printf "nvidia.com/%s" (trimPrefix "nvidia.com/" .) }}
{{- if not (hasPrefix "nvidia.com/mig-" $name) }}{{ $found = append $found $name }}{{ $found = append $found (printf "%s.shared" $name) }}{{ end }}
{{- end }}
{{- end }}
{{- end }}
{{- uniq $found | toJson | replace "\"" "'" | replace "," ", " }}
{{- end }}

{{/* Writes out the short forms of .text, with the names that only values know; with .claims slices by claims count as resources. */}}
{{- define "gpu-device-plugin.celOf" -}}
{{- $claims := "" }}
{{- if .claims }}{{ $claims = printf " + %s" (include "gpu-device-plugin.sliceClaims" "${1}") }}{{ end }}
{{- $cel := .text | include "gpu-device-plugin.cel" | replace "GPU-NAMES" (include "gpu-device-plugin.gpuNames" .root) }}
{{- regexReplaceAll `SLICE-CLAIMS\(([\w.\[\]]+)\)` $cel ($claims | replace "$'" "$$'") }}
{{- end }}

{{/* The containers of .pod (CEL) that ask for more than one GPU resource: .macro exists, or filter; .claims as for `celOf`. */}}
{{- define "gpu-device-plugin.mixes" -}}
({{ .pod }}.spec.containers + {{ .pod }}.spec.?initContainers.orValue([])).{{ .macro }}(c, {{ include "gpu-device-plugin.celOf" (dict "root" .root "claims" .claims "text" "gpus(c)") }}.size() > 1)
{{- end }}

{{/* The variables of the rules for requests, of .pod (CEL); with .claims as for `asks`. */}}
{{- define "gpu-device-plugin.ruleVariables" -}}
- name: asking
  expression: |-
    {{- include "gpu-device-plugin.asks" (dict "pod" .pod "macro" "filter" "claims" .claims) | nindent 4 }}
- name: mixing
  expression: |-
    {{ include "gpu-device-plugin.mixes" (dict "root" .root "pod" .pod "macro" "filter" "claims" .claims) }}
- name: label
  expression: {{ .pod }}.?metadata.?labels[?'aliyun.com/gpu-count'].orValue('')
- name: cards
  # A number too long for any node is as good as any number that divides nothing.
  expression: |-
    !variables.label.matches('^[0-9]+$') ? 0
    : variables.label.matches('^[0-9]{1,9}$') ? int(variables.label) : 999999999
- name: sandbox
  # The pod's RuntimeClass, if it is of a sandbox.
  expression: |-
    [{{ .pod }}.spec.?runtimeClassName.orValue('')].filter(n,
      n != '' && n.matches('^({{ join "|" .root.Values.sandboxRuntimeClasses | replace "." "[.]" | replace "*" ".*" }})$'))
{{- end }}

{{/* "true" where the values leave any rule at submission switched on. */}}
{{- define "gpu-device-plugin.hasRules" -}}
{{- $any := false }}
{{- range list .Values.policies.requests .Values.policies.isolation }}
{{- range $key, $on := . }}{{ if $on }}{{ $any = true }}{{ end }}{{ end }}
{{- end }}
{{- $any }}
{{- end }}

{{/* The validations that the values leave switched on. */}}
{{- define "gpu-device-plugin.validations" -}}
{{- $all := .Files.Get "rules.yaml" | fromYaml }}
{{- range $group := list "requests" "isolation" }}
{{- $on := index $.Values.policies $group }}
{{- range $rule := index $all $group }}
{{- if index $on $rule.key }}
{{- $bad := $rule.bad | include "gpu-device-plugin.cel" | nindent 4 }}
{{- $text := include "gpu-device-plugin.celOf" (dict "root" $ "claims" $.Values.dra.enabled "text" $rule.text) | nindent 4 }}
# {{ $rule.contract }}
- message: refused by policies.{{ $group }}.{{ $rule.key }} of gpu-device-plugin
{{- if $rule.whole }}
  expression: |-
    !({{ $bad }}
    )
  messageExpression: |-
    {{- $text }}
{{- else }}
  expression: |-
    !variables.asking.exists(c,{{ $bad }}
    )
  messageExpression: |-
    variables.asking.filter(c,{{ $bad }}
    ).map(c, 'container ' + c.name + ' ' +{{ $text }}
    ).join('; ')
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Binds the policy of the same name to the whole cluster; both are of .hook, where an event of helm is given. */}}
{{- define "gpu-device-plugin.binding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name | quote }}
  labels:
    {{- include "gpu-device-plugin.labels" .root | nindent 4 }}
  {{- with .hook }}
  annotations:
    {{- include "gpu-device-plugin.hookAnnotations" (dict "root" $.root "event" . "weight" "-10") | nindent 4 }}
  {{- end }}
spec:
  policyName: {{ .name | quote }}
  validationActions: {{ toJson .actions }}
{{- end }}
