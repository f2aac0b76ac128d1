{{/* Names of the controller's objects, and what its pods have in common. */}}

{{- define "gpu-device-plugin.controller" -}}
{{ include "gpu-device-plugin.fullname" . }}-controller
{{- end }}

{{/* Another name than the agents', so that neither's Services and sets select the other's pods. */}}
{{- define "gpu-device-plugin.controllerSelector" -}}
app.kubernetes.io/name: {{ include "gpu-device-plugin.name" . }}-controller
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "gpu-device-plugin.schedulerSelector" -}}
app.kubernetes.io/name: {{ include "gpu-device-plugin.name" . }}-scheduler
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "gpu-device-plugin.page" -}}
{{ include "gpu-device-plugin.fullname" . }}-page
{{- end }}

{{- define "gpu-device-plugin.pageSelector" -}}
app.kubernetes.io/name: {{ include "gpu-device-plugin.name" . }}-page
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{/* Labels of an object of theirs: given are root and selector. */}}
{{- define "gpu-device-plugin.ownLabels" -}}
{{ .selector }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | quote }}
{{- end }}

{{/* The names by which kube-scheduler and the API server reach it. */}}
{{- define "gpu-device-plugin.controllerNames" -}}
{{- $names := list }}
{{- range $service := list (include "gpu-device-plugin.controller" .) (printf "%s-webhook" (include "gpu-device-plugin.controller" .)) }}
{{- $names = concat $names (list (printf "%s.%s.svc" $service (include "gpu-device-plugin.namespace" $)) (printf "%s.%s" $service (include "gpu-device-plugin.namespace" $)) $service) }}
{{- end }}
{{- with .Values.controller.clusterIP }}
{{- $names = append $names . }}
{{- end }}
{{- join "," $names }}
{{- end }}

{{/* Other releases with a controller, by their ClusterRoles, whatever names they chose: given are root and roles. */}}
{{- define "gpu-device-plugin.otherController" -}}
{{- range .roles }}
{{- $labels := .metadata.labels | default dict }}
{{- $release := get $labels "app.kubernetes.io/instance" }}
{{- if and (eq (get $labels "app.kubernetes.io/component") "gpu-device-plugin-controller") (ne $release $.root.Release.Name) }}
{{- $release }}{{ " " }}
{{- end }}
{{- end }}
{{- end }}

{{/* "true" where the API server asks the controller about new pods. */}}
{{- define "gpu-device-plugin.hasWebhook" -}}
{{- and .Values.controller.enabled (or .Values.controller.webhook.enabled (eq (include "gpu-device-plugin.namedBy" .) "webhook")) }}
{{- end }}

{{/* The Secrets that somebody else fills; "" where the controller makes its own certificates. */}}
{{- define "gpu-device-plugin.controllerTls" -}}
{{- $tls := .Values.controller.tls }}
{{- ternary (printf "%s-tls" (include "gpu-device-plugin.controller" .)) $tls.secretName $tls.certManager.enabled }}
{{- end }}

{{- define "gpu-device-plugin.schedulerTls" -}}
{{- $tls := .Values.controller.tls }}
{{- ternary (printf "%s-client-tls" (include "gpu-device-plugin.controller" .)) $tls.clientSecretName $tls.certManager.enabled }}
{{- end }}

{{/* Nothing of it runs as root or on a node of its own: given are root and values, whose pod it is. */}}
{{- define "gpu-device-plugin.ownPod" -}}
enableServiceLinks: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
nodeSelector:
  kubernetes.io/os: linux
  {{- with .values.nodeSelector }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{/* Replicas prefer nodes of their own: given are root and selector. */}}
{{- define "gpu-device-plugin.spreadOut" -}}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- .selector | nindent 12 }}
{{- end }}
