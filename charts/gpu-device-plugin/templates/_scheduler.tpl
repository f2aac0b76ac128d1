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

{{- define "gpu-device-plugin.schedulerImage" -}}
{{- with (.Values.global).imageRegistry }}{{ . }}/{{ end }}
{{- .Values.scheduler.image.repository }}
{{- with .Values.scheduler.image.digest }}@{{ . }}{{ else }}:{{ default (regexFind "^v[0-9]+\\.[0-9]+\\.[0-9]+" .Capabilities.KubeVersion.Version) .Values.scheduler.image.tag }}{{ end }}
{{- end }}
