{{/*
One hook: its account, what it may do, and its Job. Given: root, name, event, cluster (rules over all
of the cluster), release (rules in the release's namespace), args, deadline (seconds).
Accounts and roles come before the Job and go with it, so that no right outlives its use.
*/}}
{{- define "gpu-device-plugin.hook" -}}
{{- $name := printf "%s-%s" (include "gpu-device-plugin.fullname" .root) .name }}
{{- $labels := include "gpu-device-plugin.labels" .root }}
{{- $namespace := include "gpu-device-plugin.namespace" .root }}
{{- $account := include "gpu-device-plugin.hookAccount" (dict "root" .root "name" .name) }}
{{- $event := .event }}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ $account | quote }}
  namespace: {{ $namespace | quote }}
  labels:
    {{- $labels | nindent 4 }}
  annotations:
    {{- include "gpu-device-plugin.hookAnnotations" (dict "root" $.root "event" $event "weight" "-10") | nindent 4 }}
automountServiceAccountToken: false
---
{{- if .root.Values.rbac.create }}
{{- range $kind := list "ClusterRole" "Role" }}
{{- $place := ternary "" (printf "\n  namespace: %q" $namespace) (eq $kind "ClusterRole") }}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind | quote }}
metadata:
  name: {{ $name }}{{ $place }}
  labels:
    {{- $labels | nindent 4 }}
  annotations:
    {{- include "gpu-device-plugin.hookAnnotations" (dict "root" $.root "event" $event "weight" "-10") | nindent 4 }}
rules:
  {{- toYaml (ternary $.cluster $.release (eq $kind "ClusterRole")) | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}Binding
metadata:
  name: {{ $name }}{{ $place }}
  labels:
    {{- $labels | nindent 4 }}
  annotations:
    {{- include "gpu-device-plugin.hookAnnotations" (dict "root" $.root "event" $event "weight" "-5") | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ $kind | quote }}
  name: {{ $name | quote }}
subjects:
  - kind: ServiceAccount
    name: {{ $account | quote }}
    namespace: {{ $namespace | quote }}
---
{{- end }}
{{- end }}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ $name | quote }}
  namespace: {{ $namespace | quote }}
  labels:
    {{- $labels | nindent 4 }}
  annotations:
    {{- include "gpu-device-plugin.hookAnnotations" (dict "root" $.root "event" $event "weight" "0") | nindent 4 }}
    helm.sh/hook-output-log-policy: hook-succeeded,hook-failed
spec:
  backoffLimit: 0
  ttlSecondsAfterFinished: 3600
  # Its own deadline comes first, and says why.
  activeDeadlineSeconds: {{ add .deadline 40 }}
  template:
    metadata:
      labels:
        app.kubernetes.io/name: {{ $name | quote }}
        app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
    spec:
      restartPolicy: Never
      serviceAccountName: {{ $account | quote }}
      automountServiceAccountToken: true
      enableServiceLinks: false
      {{- with .root.Values.imagePullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      nodeSelector:
        kubernetes.io/os: linux
      # Where an agent runs or ran, the image is, also one that no registry has.
      affinity:
        {{- $agents := .root.Values.affinity | default (include "gpu-device-plugin.affinity" .root | fromYaml) }}
        {{- with (($agents.nodeAffinity).requiredDuringSchedulingIgnoredDuringExecution).nodeSelectorTerms }}
        nodeAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
            {{- range . }}
            - weight: 10
              preference:
                {{- toYaml . | nindent 16 }}
            {{- end }}
        {{- end }}
        podAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
            - weight: 100
              podAffinityTerm:
                topologyKey: kubernetes.io/hostname
                labelSelector:
                  matchLabels:
                    {{- include "gpu-device-plugin.selector" .root | nindent 20 }}
      {{- with .root.Values.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        runAsGroup: 65532
        seccompProfile:
          type: RuntimeDefault
      containers:
        - name: {{ .name | quote }}
          image: {{ include "gpu-device-plugin.image" .root | quote }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy | quote }}
          command: [gpu-device-plugin]
          args:
            - {{ .command }}
            - {{ printf "--namespace=%v" $namespace | quote }}
            - {{ printf "--daemonset=%v" (include "gpu-device-plugin.fullname" .root) | quote }}
            {{- range .args }}
            - {{ . }}
            {{- end }}
          # The last lines stand in the pod's status too.
          terminationMessagePolicy: FallbackToLogsOnError
          {{- include "gpu-device-plugin.containerSecurity" . | nindent 10 }}
          resources:
            requests:
              cpu: 20m
              memory: 64Mi
            limits:
              memory: 256Mi
{{- end }}

{{/* Never the agent's: its token may not set the mark, and a hook needs rights that the agent has not. */}}
{{- define "gpu-device-plugin.hookAccount" -}}
{{- printf "%s-%s" (include "gpu-device-plugin.fullname" .root) .name }}
{{- end }}

{{/* helm 3.18 and later show what a failed hook says. With an older one its Job stays for an hour to be read. */}}
{{- define "gpu-device-plugin.hookAnnotations" -}}
helm.sh/hook: {{ .event | quote }}
helm.sh/hook-weight: {{ .weight | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- if semverCompare ">=3.18.0-0" .root.Capabilities.HelmVersion.Version }},hook-failed{{ end }}
{{- end }}
