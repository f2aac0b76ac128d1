{{/* The same for every container: nothing that a node's administrator would have to trust. */}}
{{- define "gpu-device-plugin.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  privileged: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{/* The agent's own. With SYS_ADMIN the NVIDIA runtime shows MIG instances; the agent gives it up at its start. */}}
{{- define "gpu-device-plugin.agentSecurity" -}}
{{- if include "gpu-device-plugin.monitorsMig" . }}
securityContext:
  # Kubernetes has it so with SYS_ADMIN; the agent sets no_new_privs itself.
  allowPrivilegeEscalation: true
  privileged: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
    add: [SYS_ADMIN]
{{- else }}
{{- include "gpu-device-plugin.containerSecurity" . }}
{{- end }}
{{- end }}
