{{/* The same for every container: nothing that a node's administrator would have to trust. */}}
{{- define "gpu-device-plugin.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  privileged: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}
