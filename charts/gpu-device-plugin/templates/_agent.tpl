{{/* The agent's settings file (docs/settings.md); a change of it starts the agents again. */}}
{{- define "gpu-device-plugin.settings" -}}
config.yaml: |
  {{- include "gpu-device-plugin.given" .Values | trim | nindent 2 }}
  {{- if .Values.gfd.enabled }}
  gfd: true
  {{- end }}
  {{- if include "gpu-device-plugin.mountsCdi" . }}
  without_claims: {{ not .Values.dra.enabled }}
  {{- end }}
  {{- if .Values.simulate.profile }}
  simulator_dir: /run/gpu-device-plugin/simulator
  {{- else if .Values.driverRoot }}
  nvml_library: {{ printf "/driver-root/%s" .Values.nvmlLibrary | quote }}
  {{- end }}
  {{- if .Values.xidTable }}
  xid_table: /etc/gpu-device-plugin/xid-table.yaml
  {{- end }}
  {{- if .Values.nodeSettings.map }}
  node_settings_dir: /etc/gpu-device-plugin
  {{- end }}
  metrics_address: ":{{ .Values.metrics.port }}"
{{- range $name, $settings := .Values.nodeSettings.map }}
node-{{ $name }}.yaml: |
  {{- include "gpu-device-plugin.given" $settings | trim | nindent 2 }}
{{- end }}
{{- with .Values.xidTable }}
xid-table.yaml: |
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Settings of the file; a value that is nothing is none. */}}
{{- define "gpu-device-plugin.given" -}}
{{- range $key, $value := include "gpu-device-plugin.fileSettings" . | fromJson }}
{{- if not (has $value (list nil "")) }}
{{ $key }}: {{ toJson $value }}
{{- end }}
{{- end }}
{{- end }}

{{/* Not empty where the agent writes CDI files: for claims, or with a hook for the driver's memory limits. */}}
{{- define "gpu-device-plugin.usesCdi" -}}
{{- if or .Values.dra.enabled (ne .Values.memoryEnforcer "library") }}true{{ end }}
{{- end }}

{{/* Not empty where the agent has the directory of CDI files, if only to read what others wrote. */}}
{{- define "gpu-device-plugin.mountsCdi" -}}
{{- if or (include "gpu-device-plugin.usesCdi" .) (include "gpu-device-plugin.asksForCdi" .) .Values.cdi.generator .Values.config.name }}true{{ end }}
{{- end }}

{{/* The ConfigMap with NVIDIA's configuration files; empty without one. */}}
{{- define "gpu-device-plugin.nvidiaConfig" -}}
{{- if .Values.config.map }}{{ include "gpu-device-plugin.fullname" . }}-nvidia{{ else }}{{ .Values.config.name }}{{ end }}
{{- end }}

{{/* Whether a configuration file of `config.map` asks for IMEX channels. */}}
{{- define "gpu-device-plugin.imexChannels" -}}
{{- if contains "channelIDs" (toJson .Values.config.map) }}true{{ end }}
{{- end }}

{{/* NVIDIA's settings under its variables, which stand over its files. */}}
{{- define "gpu-device-plugin.nvidiaVariables" -}}
{{- if include "gpu-device-plugin.nvidiaConfig" . }}
- name: CONFIG_FILE_SRCDIR
  value: /etc/nvidia-config
- name: DEFAULT_CONFIG
  value: {{ .Values.config.default | quote }}
- name: FALLBACK_STRATEGIES
  value: {{ join "," .Values.config.fallbackStrategies | quote }}
- name: MPS_ROOT
  value: {{ .Values.mps.root | quote }}
{{- end }}
{{- range $name, $value := include "gpu-device-plugin.nvidiaSettings" .Values | fromJson }}
{{- /* By "none" NVIDIA's own chart leaves a setting to its file. */}}
{{- if not (has $value (list nil "" "none")) }}
- name: {{ $name }}
  value: {{ toString $value | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* Not empty where the agent has to see the MIG instances of every card. */}}
{{- define "gpu-device-plugin.monitorsMig" -}}
{{- if and (or (ne .Values.migStrategy "none") (eq .Values.mode "mig")) (not .Values.simulate.profile) }}true{{ end }}
{{- end }}
