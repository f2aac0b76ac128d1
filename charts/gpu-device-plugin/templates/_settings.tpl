{{/* Written by python -m tools.chart_values; do not edit. */}}

{{/* Keys of the agent's file, as JSON: given are values. */}}
{{- define "gpu-device-plugin.fileSettings" -}}
{{- dict
  "device_list_strategy" .deviceListStrategy
  "pass_device_specs" .compatWithCPUManager
  "mode" .mode
  "memory_unit" .gpuMemoryUnit
  "placement" .placement
  "compute_policy" .computePolicy
  "honor_pod_compute_policy" .honorPodComputePolicy
  "isolation" .isolation
  "memory_enforcer" .memoryEnforcer
  "driver_limit_by" .driverLimitBy
  "allocation_api" .allocationApi
  "cdi_dir" .cdiDir
  "driver_capabilities" .driverCapabilities
  "library_dir" .libraryDir
  "sandbox_runtime_classes" .sandboxRuntimeClasses
  "honor_cgpu_disable" .honorCgpuDisable
  "allow_other_plugin" .allowOtherPlugin
  "startup_taint" .startupTaint
  "recovery_seconds" .recoverySeconds
  "unified_memory_reserve_mib" .unifiedMemoryReserveMib
  "kubelet_dir" .kubeletDir
  "log_level" .logLevel
  "log_format" .logFormat | toJson }}
{{- end }}

{{/* The same of NVIDIA's variables. */}}
{{- define "gpu-device-plugin.nvidiaSettings" -}}
{{- dict
  "MIG_STRATEGY" .migStrategy
  "MIG_PROFILE" .migProfile
  "FAIL_ON_INIT_ERROR" .failOnInitError
  "DEVICE_ID_STRATEGY" .deviceIDStrategy
  "NVIDIA_DRIVER_ROOT" .nvidiaDriverRoot
  "NVIDIA_DEV_ROOT" .nvidiaDevRoot
  "GDRCOPY_ENABLED" .gdrcopyEnabled
  "GDS_ENABLED" .gdsEnabled
  "MOFED_ENABLED" .mofedEnabled | toJson }}
{{- end }}
