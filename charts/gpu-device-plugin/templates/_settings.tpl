{{/* The agent's settings file (docs/settings.md); a change of it starts the agents again. */}}
{{- define "gpu-device-plugin.settings" -}}
config.yaml: |
  mode: {{ .Values.mode }}
  memory_unit: {{ .Values.gpuMemoryUnit }}
  placement: {{ .Values.placement }}
  compute_policy: {{ .Values.computePolicy | quote }}
  memory_enforcer: {{ .Values.memoryEnforcer }}
  driver_limit_by: {{ .Values.driverLimitBy }}
  honor_pod_compute_policy: {{ .Values.honorPodComputePolicy }}
  isolation: {{ ternary "on" "off" .Values.isolation.enabled | quote }}
  honor_cgpu_disable: {{ .Values.honorCgpuDisable }}
  sandbox_runtime_classes: {{ toJson .Values.sandboxRuntimeClasses }}
  {{- with include "gpu-device-plugin.strategies" . }}
  device_list_strategy: {{ . | quote }}
  {{- end }}
  {{- with include "gpu-device-plugin.passesNodes" . }}
  pass_device_specs: {{ . }}
  {{- end }}
  {{- if .Values.gfd.enabled }}
  gfd: "on"
  {{- end }}
  driver_capabilities: {{ .Values.driverCapabilities | quote }}
  allow_other_plugin: {{ .Values.allowOtherPlugin }}
  startup_taint: {{ .Values.startupTaint | quote }}
  recovery_seconds: {{ .Values.recoverySeconds }}
  unified_memory_reserve_mib: {{ int .Values.unifiedMemoryReserveMib }}
  {{- if .Values.dra.enabled }}
  allocation_api: {{ .Values.allocationApi }}
  {{- end }}
  {{- if include "gpu-device-plugin.mountsCdi" . }}
  without_claims: {{ not .Values.dra.enabled }}
  cdi_dir: {{ .Values.dra.cdiDir | quote }}
  {{- end }}
  kubelet_dir: {{ .Values.kubeletDir | quote }}
  library_dir: {{ .Values.libraryDir | quote }}
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
  log_level: {{ .Values.logLevel }}
  log_format: {{ .Values.logFormat }}
{{- range $name, $settings := .Values.nodeSettings.map }}
node-{{ $name }}.yaml: |
  {{- with $settings.mode }}
  mode: {{ . }}
  {{- end }}
  {{- with $settings.gpuMemoryUnit }}
  memory_unit: {{ . }}
  {{- end }}
  {{- with $settings.isolation }}
  isolation: {{ ternary "on" "off" .enabled | quote }}
  {{- end }}
  {{- with $settings.deviceListStrategy }}
  device_list_strategy: {{ . | quote }}
  {{- end }}
  {{- with $settings.recoverySeconds }}
  recovery_seconds: {{ . }}
  {{- end }}
{{- end }}
{{- with .Values.xidTable }}
xid-table.yaml: |
  {{- toYaml . | nindent 2 }}
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
{{- $found := list }}
{{- if include "gpu-device-plugin.nvidiaConfig" . }}
{{- $found = append $found (dict "name" "CONFIG_FILE_SRCDIR" "value" "/etc/nvidia-config") }}
{{- $found = append $found (dict "name" "DEFAULT_CONFIG" "value" .Values.config.default) }}
{{- $found = append $found (dict "name" "FALLBACK_STRATEGIES" "value" (join "," .Values.config.fallbackStrategies)) }}
{{- $found = append $found (dict "name" "MPS_ROOT" "value" .Values.mps.root) }}
{{- end }}
{{- if ne .Values.migStrategy "none" }}
{{- $found = append $found (dict "name" "MIG_STRATEGY" "value" .Values.migStrategy) }}
{{- end }}
{{- range $name, $value := dict "MIG_PROFILE" .Values.migProfile "DEVICE_ID_STRATEGY" .Values.deviceIDStrategy "NVIDIA_DRIVER_ROOT" .Values.nvidiaDriverRoot "NVIDIA_DEV_ROOT" .Values.nvidiaDevRoot }}
{{- if $value }}{{ $found = append $found (dict "name" $name "value" $value) }}{{ end }}
{{- end }}
{{- range $name, $value := dict "FAIL_ON_INIT_ERROR" .Values.failOnInitError "GDRCOPY_ENABLED" .Values.gdrcopyEnabled "GDS_ENABLED" .Values.gdsEnabled "MOFED_ENABLED" .Values.mofedEnabled }}
{{- if kindIs "bool" $value }}{{ $found = append $found (dict "name" $name "value" (toString $value)) }}{{ end }}
{{- end }}
{{- if $found }}{{ toYaml $found }}{{ end }}
{{- end }}

{{/* Not empty where the agent has to see the MIG instances of every card. */}}
{{- define "gpu-device-plugin.monitorsMig" -}}
{{- if and (or (ne .Values.migStrategy "none") (eq .Values.mode "mig")) (not .Values.simulate.profile) }}true{{ end }}
{{- end }}
