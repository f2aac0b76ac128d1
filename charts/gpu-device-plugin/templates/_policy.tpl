{{/* Writes out the short forms of rules.yaml. */}}
{{- define "gpu-device-plugin.cel" -}}
{{- $cel := regexReplaceAll `mem\((\w+)\)` . `quantity(string(limits(${1})[?'aliyun.com/gpu-mem'].orValue('0'))).asInteger()` }}
{{- $cel = regexReplaceAll `core\((\w+)\)` $cel `quantity(string(limits(${1})[?'aliyun.com/gpu-core.percentage'].orValue('0'))).asInteger()` }}
{{- $cel = regexReplaceAll `limits\((\w+)\)` $cel `${1}.?resources.?limits.orValue({})` }}
{{- $cel = regexReplaceAll `ours\(([\w.]+)\)` $cel `('..' in ${1}.split('/') || ['/etc/ld.so.preload/', '/run/gpu-device-plugin/', '/var/run/gpu-device-plugin/', '/usr/local/lib/gpu-device-plugin/'].exists(our, ('/' + ${1}.split('/').filter(s, s != '' && s != '.').join('/') + '/').startsWith(our)))` }}
{{- $cel }}
{{- end }}

{{/* Whether pod `.` (CEL) asks for any of our resources; other pods never reach a rule. */}}
{{- define "gpu-device-plugin.asks" -}}
({{ . }}.spec.containers + {{ . }}.spec.?initContainers.orValue([])).exists(c, ['aliyun.com/gpu-mem', 'aliyun.com/gpu-core.percentage', 'aliyun.com/gpu-count'].exists(r, r in c.?resources.?limits.orValue({})))
{{- end }}

{{/* The validations that the values leave switched on. */}}
{{- define "gpu-device-plugin.validations" -}}
{{- $all := .Files.Get "rules.yaml" | fromYaml }}
{{- range $group := list "requests" "isolation" }}
{{- $on := index $.Values.policies $group }}
{{- range $rule := index $all $group }}
{{- if index $on $rule.key }}
# {{ $group }}.{{ $rule.key }} ({{ $rule.contract }})
{{- if $rule.whole }}
- expression: {{ printf "!(%s)" $rule.bad | include "gpu-device-plugin.cel" | toJson }}
  messageExpression: {{ $rule.text | include "gpu-device-plugin.cel" | toJson }}
{{- else }}
- expression: {{ printf "!variables.asking.exists(c, %s)" $rule.bad | include "gpu-device-plugin.cel" | toJson }}
  messageExpression: {{ printf "variables.asking.filter(c, %s).map(c, 'container ' + c.name + ' ' + %s).join('; ')" $rule.bad $rule.text | include "gpu-device-plugin.cel" | toJson }}
{{- end }}
  message: {{ printf "refused by the rule policies.%s.%s of gpu-device-plugin" $group $rule.key }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Binds the policy of the same name to the whole cluster. */}}
{{- define "gpu-device-plugin.binding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}
  labels:
    {{- include "gpu-device-plugin.labels" .root | nindent 4 }}
spec:
  policyName: {{ .name }}
  validationActions: {{ toJson .actions }}
{{- end }}
