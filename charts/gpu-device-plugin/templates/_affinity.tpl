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

{{/*
Which nodes a workload that opens cards runs on, as nodeSelector and affinity. Takes a dict: root (the chart's), selector (labels that a
node must have) and affinity. In each of its terms it leaves nodes where NVIDIA's operator is about to change the driver or the MIG
layout, which an open card would prevent; a node without the operator's label is none of them.
*/}}
{{- define "gpu-device-plugin.placement" -}}
{{- $client := "nvidia.com/gpu.deploy.client" }}
{{- $away := dict "key" $client "operator" "NotIn" "values" (list "paused-for-driver-upgrade" "paused-for-mig-change" "false") }}
{{- $affinity := deepCopy .affinity }}
{{- $node := $affinity.nodeAffinity | default dict }}
{{- $terms := list }}
{{- range ($node.requiredDuringSchedulingIgnoredDuringExecution).nodeSelectorTerms | default (list (dict "matchExpressions" list)) }}
{{- /* A term without anything chooses no node: it stays so. */ -}}
{{- $terms = append $terms (ternary . (merge (dict "matchExpressions" (append (.matchExpressions | default list) $away)) .) (empty .)) }}
{{- end }}
{{- $_ := set $node "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) }}
{{- $waits := ternary (dict $client "true") dict (eq .root.Values.driverUpgrades "nodeSelector") }}
nodeSelector:
  {{- toYaml (merge (deepCopy (.selector | default dict)) $waits (dict "kubernetes.io/os" "linux")) | nindent 2 }}
affinity:
  {{- toYaml (set $affinity "nodeAffinity" $node) | nindent 2 }}
{{- end }}

{{/* The nodes of the agents. */}}
{{- define "gpu-device-plugin.agentPlacement" -}}
{{- $affinity := .Values.affinity | default (include "gpu-device-plugin.affinity" . | fromYaml) }}
{{- include "gpu-device-plugin.placement" (dict "root" . "selector" .Values.nodeSelector "affinity" $affinity) }}
{{- end }}

{{/* Which taints workloads of the nodes tolerate; empty for none. */}}
{{- define "gpu-device-plugin.tolerations" -}}
{{- with concat .Values.tolerations (ternary (list (dict "key" .Values.startupTaint "operator" "Exists")) list (ne .Values.startupTaint "")) -}}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
