{{/* Names and labels that several objects share. */}}

{{- define "gpu-device-plugin.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 52 | trimSuffix "-" }}
{{- end }}

{{/* The release's name, with the chart's unless it is in it already. Up to 19 characters are
appended to it (-controller-webhook), and a Service's and a Job's name has at most 63. */}}
{{- define "gpu-device-plugin.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 44 | trimSuffix "-" }}
{{- else if contains (include "gpu-device-plugin.name" .) .Release.Name }}
{{- .Release.Name | trunc 44 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "gpu-device-plugin.name" .) | trunc 44 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Where the objects go; of a parent chart's release, which is in one namespace, perhaps another one. */}}
{{- define "gpu-device-plugin.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride }}
{{- end }}

{{- define "gpu-device-plugin.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "gpu-device-plugin.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name is needed where serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "gpu-device-plugin.selector" -}}
app.kubernetes.io/name: {{ include "gpu-device-plugin.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "gpu-device-plugin.labels" -}}
{{ include "gpu-device-plugin.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | quote }}
{{- end }}

{{/* Not empty where the agent names its cards to the NVIDIA runtime by mounts, as its answers do. */}}
{{- define "gpu-device-plugin.byMounts" -}}
{{- if and (has "volume-mounts" (include "gpu-device-plugin.strategies" . | splitList ",")) (not .Values.simulate.profile) }}true{{ end }}
{{- end }}

{{/* The device list strategies with commas, empty for the agent's default. */}}
{{- define "gpu-device-plugin.strategies" -}}
{{- kindIs "slice" .Values.deviceListStrategy | ternary .Values.deviceListStrategy (list .Values.deviceListStrategy) | join "," }}
{{- end }}

{{/* Not empty where cards may come by CDI: the settings ask for it, those of some node, or a file of `config.map`. */}}
{{- define "gpu-device-plugin.asksForCdi" -}}
{{- if regexMatch "cdi-(cri|annotations)|\" *auto *\"" (include "gpu-device-plugin.askedStrategies" .) }}true{{ end }}
{{- end }}

{{/* As JSON what says how cards come on some node; a file that is given as text stands there as the object that it is. */}}
{{- define "gpu-device-plugin.askedStrategies" -}}
{{- $asked := list .Values.deviceListStrategy .Values.nodeSettings.map }}
{{- range .Values.config.map }}
{{- $file := kindIs "map" . | ternary . (fromYaml (toString .)) }}
{{- $flags := kindIs "map" $file.flags | ternary $file.flags dict }}
{{- $plugin := kindIs "map" $flags.plugin | ternary $flags.plugin dict }}
{{- $asked = append $asked $plugin.deviceListStrategy }}
{{- end }}
{{- toJson $asked }}
{{- end }}

{{/*
What an init container that runs nvidia-ctk has beside its arguments. Its /driver-root is the driver's on the node, because
the program writes down the paths that it sees; `transform` turns them into those of the node.
*/}}
{{- define "gpu-device-plugin.ctk" -}}
image: {{ include "gpu-device-plugin.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy | quote }}
command: [/toolkit/nvidia-ctk]
{{ include "gpu-device-plugin.containerSecurity" . }}
resources:
  {{- toYaml .Values.resources | nindent 2 }}
volumeMounts:
  - name: toolkit
    mountPath: /toolkit/nvidia-ctk
    readOnly: true
  - name: specification
    mountPath: /specification
{{- end }}

{{/* Whether answers contain device nodes: true, false, or empty for the agent's default. */}}
{{- define "gpu-device-plugin.passesNodes" -}}
{{- kindIs "bool" .Values.compatWithCPUManager | ternary .Values.compatWithCPUManager "" }}
{{- end }}

{{/*
What the pod of `helm test` asks for. Empty where there is no such test: modes that offer nothing, instances of
unknown profiles, and claims.
*/}}
{{- define "gpu-device-plugin.testedResource" -}}
{{- $offered := dict "core_mem" "aliyun.com/gpu-mem" "cgpu" "aliyun.com/gpu-mem" "share" "aliyun.com/gpu-mem" "default" "nvidia.com/gpu" "topology" "aliyun.com/gpu" }}
{{- if ne .Values.allocationApi "dra" }}{{ get $offered .Values.mode }}{{ end }}
{{- end }}

{{- define "gpu-device-plugin.image" -}}
{{- with (.Values.global).imageRegistry }}{{ . }}/{{ end }}
{{- .Values.image.repository }}
{{- with .Values.image.digest }}@{{ . }}{{ else }}:{{ default .Chart.AppVersion .Values.image.tag }}{{ end }}
{{- end }}
