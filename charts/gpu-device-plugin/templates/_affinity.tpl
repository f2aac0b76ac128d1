{{/*
Nodes with an NVIDIA card, by the labels that feature discovery and the clouds set; with
simulate.profile the other ones, so that simulated cards never stand beside real ones.
*/}}
{{- define "gpu-device-plugin.affinity" -}}
{{- $cards := list
  (dict "key" "feature.node.kubernetes.io/pci-10de.present" "values" (list "true"))
  (dict "key" "feature.node.kubernetes.io/pci-0300_10de.present" "values" (list "true"))
  (dict "key" "feature.node.kubernetes.io/pci-0302_10de.present" "values" (list "true"))
  (dict "key" "nvidia.com/gpu.present" "values" (list "true"))
  (dict "key" "cloud.google.com/gke-accelerator")
  (dict "key" "k8s.amazonaws.com/accelerator")
  (dict "key" "karpenter.k8s.aws/instance-gpu-manufacturer" "values" (list "nvidia"))
  (dict "key" "kubernetes.azure.com/accelerator" "values" (list "nvidia"))
-}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      {{- if .Values.simulate.profile }}
      - matchExpressions:
          {{- range $cards }}
          {{- if .values }}
          - {key: {{ .key }}, operator: NotIn, values: {{ toJson .values }}}
          {{- else }}
          - {key: {{ .key }}, operator: DoesNotExist}
          {{- end }}
          {{- end }}
      {{- else }}
      {{- range $cards }}
      - matchExpressions:
          {{- if .values }}
          - {key: {{ .key }}, operator: In, values: {{ toJson .values }}}
          {{- else }}
          - {key: {{ .key }}, operator: Exists}
          {{- end }}
      {{- end }}
      - matchExpressions:
          - {key: ack.node.gpu.schedule, operator: Exists}
      {{- end }}
{{- end }}
