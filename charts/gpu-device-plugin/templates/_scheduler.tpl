{{/* "true" where the second scheduler is installed: it has nobody to ask without the controller. */}}
{{- define "gpu-device-plugin.hasScheduler" -}}
{{- and .Values.controller.enabled .Values.scheduler.enabled }}
{{- end }}

{{/* Who gives pods the scheduler's name: policy, webhook or nobody. */}}
{{- define "gpu-device-plugin.namedBy" -}}
{{- if ne (include "gpu-device-plugin.hasScheduler" .) "true" }}nobody
{{- else if ne .Values.scheduler.namedBy "auto" }}{{ .Values.scheduler.namedBy }}
{{- else if semverCompare ">=1.36-0" .Capabilities.KubeVersion.Version }}policy
{{- else }}webhook
{{- end }}
{{- end }}

{{/*
The conditions (CEL) of a pod that gets the scheduler's name: it asks for units, nobody has chosen a scheduler or a node
for it, and it is no DaemonSet's, whose pods belong to one node each.
*/}}
{{- define "gpu-device-plugin.getsScheduler" -}}
- name: asks-for-units
  expression: |-
    (object.spec.containers + object.spec.?initContainers.orValue([])).exists(c,
      ['aliyun.com/gpu-mem', 'aliyun.com/gpu-core.percentage'].exists(r, r in c.?resources.?limits.orValue({})))
- name: has-no-scheduler-and-no-node
  expression: |-
    object.spec.?schedulerName.orValue('default-scheduler') == 'default-scheduler' && object.spec.?nodeName.orValue('') == ''
- name: is-of-no-daemonset
  expression: |-
    !object.metadata.?ownerReferences.orValue([]).exists(o, o.kind == 'DaemonSet' && o.?controller.orValue(false))
{{- end }}

{{/* Not what the cluster needs to start. Where pods use claims, the cluster's own scheduler sees cards. */}}
{{- define "gpu-device-plugin.namedNamespaces" -}}
- key: kubernetes.io/metadata.name
  operator: NotIn
  values: [kube-system]
- key: gpu-device-plugin/allocation-api
  operator: NotIn
  values: [dra]
{{- end }}

{{/* kube-scheduler's configuration: the part that asks the controller is the same in every way to use it. */}}
{{- define "gpu-device-plugin.schedulerConfiguration" -}}
{{- $host := printf "%s.%s.svc" (include "gpu-device-plugin.controller" .) (include "gpu-device-plugin.namespace" .) -}}
{{- with .Values.controller.clusterIP }}
{{- $host = ternary (printf "[%s]" .) . (contains ":" .) }}
{{- end -}}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: true
  resourceName: {{ include "gpu-device-plugin.fullname" . }}-scheduler
  resourceNamespace: {{ include "gpu-device-plugin.namespace" . | quote }}
# With more than 100 nodes kube-scheduler looks at a part of them only, and perhaps at none with a card that fits.
percentageOfNodesToScore: 100
profiles:
  - schedulerName: {{ .Values.scheduler.name | quote }}
extenders:
  - urlPrefix: https://{{ $host }}/gpushare-scheduler
    filterVerb: filter
    prioritizeVerb: prioritize
    preemptVerb: preempt
    bindVerb: bind
    weight: 1
    enableHTTPS: true
    tlsConfig:
      caFile: /etc/kubernetes/gpu-device-plugin-tls/ca.crt
      certFile: /etc/kubernetes/gpu-device-plugin-tls/tls.crt
      keyFile: /etc/kubernetes/gpu-device-plugin-tls/tls.key
    nodeCacheCapable: true
    # A pod with a slice waits while no controller leads.
    ignorable: false
    httpTimeout: 30s
    managedResources:
      {{- range list "aliyun.com/gpu-mem" "aliyun.com/gpu-core.percentage" }}
      - name: {{ . | quote }}
        ignoredByScheduler: false
      {{- end }}
{{- end }}

{{/*
By default in the cluster's version: without a vendor's suffix, with that of a pre-release. Argo CD tells helm two parts of
it, as 1.36 or 1.36+; semver adds the third.
*/}}
{{- define "gpu-device-plugin.schedulerImage" -}}
{{- $image := .Values.scheduler.image }}
{{- $version := regexFind "^v?[0-9]+(\\.[0-9]+)+(-(alpha|beta|rc)\\.[0-9]+)?" .Capabilities.KubeVersion.Version }}
{{- with (.Values.global).imageRegistry }}
{{- . }}/{{ $image.repository | trimPrefix "registry.k8s.io/" }}
{{- else }}
{{- $image.repository }}
{{- end }}
{{- with $image.digest }}@{{ . }}{{ else }}:{{ default (printf "v%s" (semver $version)) $image.tag }}{{ end }}
{{- end }}
