{{/*
What the schema cannot say in words: combinations that make no sense, and values that other
products know and this one does not serve yet. Every manifest that the agent needs includes it.
*/}}
{{- define "gpu-device-plugin.check" -}}
{{- if eq .Values.mode "mps" }}
{{- fail "mode mps is not served yet: for replicas by MPS set mode to default, and config and mps.enabled" }}
{{- end }}
{{- if has (toString .Values.computePolicy) (list "0" "4") }}
{{- fail (printf "computePolicy %v shares by the number of containers, which is not offered: a share is what a pod asks for; choose fixed (3), work-conserving (1, 2) or native (5)" .Values.computePolicy) }}
{{- end }}
{{- if and .Values.config.name .Values.config.map }}
{{- fail "config.name and config.map exclude each other: name a ConfigMap of yours, or give the files" }}
{{- end }}
{{- if and .Values.config.default .Values.config.map (not (hasKey .Values.config.map .Values.config.default)) }}
{{- fail (printf "config.default %s is none of config.map: it has %s" .Values.config.default (keys .Values.config.map | sortAlpha | join ", ")) }}
{{- end }}
{{- $schema := .Files.Get "nvidia-configuration.json" | fromJson }}
{{- range $name, $text := .Values.config.map }}
{{- include "gpu-device-plugin.checkConfig" (dict "name" $name "schema" $schema "content" (kindIs "map" $text | ternary $text (fromYaml (toString $text)))) }}
{{- end }}
{{- if and .Values.mps.enabled (not (include "gpu-device-plugin.nvidiaConfig" .)) }}
{{- fail "mps.enabled needs config.map or config.name: a file there that has sharing.mps" }}
{{- end }}
{{- if and .Values.mps.enabled (not .Values.gfd.enabled) }}
{{- fail "mps.enabled needs gfd.enabled: the MPS daemon runs on nodes labelled nvidia.com/mps.capable=true, which the feature labels say" }}
{{- end }}
{{- if and .Values.mps.enabled (eq .Values.migStrategy "mixed") }}
{{- fail "mps.enabled does not go with migStrategy mixed: MPS knows no MIG instances" }}
{{- end }}
{{- include "gpu-device-plugin.checkImage" . }}
{{- if and .Values.driverRoot (not .Values.nvmlLibrary) }}
{{- fail "driverRoot needs nvmlLibrary, the path of libnvidia-ml.so.1 below it: for instance driverRoot /home/kubernetes/bin/nvidia with nvmlLibrary lib64/libnvidia-ml.so.1" }}
{{- end }}
{{- if and .Values.driverRoot (ne .Values.memoryEnforcer "library") (not .Values.nvidiaDriverRoot) }}
{{- fail (printf "memoryEnforcer %s with driverRoot needs nvidiaDriverRoot, the same directory on the nodes: there the hook that limits memory loads the driver's libnvidia-ml.so.1" .Values.memoryEnforcer) }}
{{- end }}
{{- if and .Values.nvmlLibrary (not .Values.driverRoot) }}
{{- fail "nvmlLibrary is a path below driverRoot: set driverRoot as well" }}
{{- end }}
{{- if and .Values.simulate.profile (or .Values.driverRoot .Values.runtimeClassName) }}
{{- fail "simulate.profile is for nodes without a driver: it goes with neither driverRoot nor runtimeClassName" }}
{{- end }}
{{- $strategies := include "gpu-device-plugin.strategies" . }}
{{- if and .Values.simulate.profile (regexMatch "cdi" $strategies) }}
{{- fail (printf "simulate.profile brings its cards by mounts: it does not go with deviceListStrategy %s, leave that out" $strategies) }}
{{- end }}
{{- if and .Values.simulate.profile (or .Values.cdi.generator .Values.cdi.managementAnnotation) }}
{{- fail "simulate.profile is for nodes without a driver: it goes with neither cdi.generator nor cdi.managementAnnotation" }}
{{- end }}
{{- if and .Values.cdi.managementAnnotation (or .Values.runtimeClassName (include "gpu-device-plugin.byMounts" .)) }}
{{- fail "cdi.managementAnnotation is for nodes without a RuntimeClass nvidia: it goes with neither runtimeClassName nor deviceListStrategy volume-mounts" }}
{{- end }}
{{- if and (or .Values.cdi.generator .Values.cdi.managementAnnotation) (not (or (include "gpu-device-plugin.asksForCdi" .) .Values.config.name)) }}
{{- fail "cdi.generator and cdi.managementAnnotation are for cards that come by CDI: set deviceListStrategy to auto or cdi-cri" }}
{{- end }}
{{- if and .Values.cdi.managementAnnotation (regexMatch "\" *auto *\"" (include "gpu-device-plugin.askedStrategies" .)) }}
{{- fail "cdi.managementAnnotation is for nodes on which nothing reads NVIDIA_VISIBLE_DEVICES, to which deviceListStrategy auto may fall back: set it to cdi-cri" }}
{{- end }}
{{- if and .Values.cdi.managementAnnotation .Values.policies.enabled (not (kindIs "slice" .Values.policies.cdiNamespaces)) }}
{{- fail "cdi.managementAnnotation: NVIDIA's NRI plugin gives every pod the cards that its annotations name. Set policies.cdiNamespaces to the namespaces whose pods may have them: the GPU Operator's; [] is none beside this release's" }}
{{- end }}
{{- if and .Values.simulate.profile (eq (include "gpu-device-plugin.passesNodes" .) "true") }}
{{- fail "simulate.profile brings its cards by mounts: it does not go with compatWithCPUManager, leave that out" }}
{{- end }}
{{- range .Values.extraEnv }}
{{- if eq .name "NVIDIA_VISIBLE_DEVICES" }}
{{- fail "extraEnv: NVIDIA_VISIBLE_DEVICES would hide cards from the agent, not keep them for others: name those in the ConfigMap kube-system/unhealthy-gpu-NODE" }}
{{- end }}
{{- if regexMatch "^(GPU_DEVICE_PLUGIN_.*|NODE_NAME|POD_NAME|POD_NAMESPACE|NVIDIA_.*)$" .name }}
{{- fail (printf "extraEnv: the chart gives %s itself; settings are values, not variables" .name) }}
{{- end }}
{{- end }}
{{- if and .Values.simulate.driverVersion (not .Values.simulate.profile) }}
{{- fail "simulate.driverVersion is the version of a simulated driver: it needs simulate.profile" }}
{{- end }}
{{- if and (has "Deny" .Values.policies.validationActions) (has "Warn" .Values.policies.validationActions) }}
{{- fail "policies.validationActions: the API server takes Deny or Warn, not both; leave one out" }}
{{- end }}
{{- if and .Values.serviceMonitor.enabled (not .Values.service.enabled) }}
{{- fail "serviceMonitor.enabled needs service.enabled: a ServiceMonitor finds the agents through a Service" }}
{{- end }}
{{- if and .Values.podMonitor.enabled .Values.serviceMonitor.enabled }}
{{- fail "podMonitor.enabled and serviceMonitor.enabled: every agent would be scraped twice; choose one" }}
{{- end }}
{{- if and .Values.scheduler.enabled (eq .Values.scheduler.name "default-scheduler") }}
{{- fail "scheduler.name default-scheduler is the cluster's own kube-scheduler: two would schedule every pod; give another name, which pods say as schedulerName" }}
{{- end }}
{{- if and (eq .Values.scheduler.namedBy "policy") (semverCompare "<1.36-0" .Capabilities.KubeVersion.Version) }}
{{- fail (printf "scheduler.namedBy policy needs Kubernetes 1.36 or later, this cluster has %s: its API server changes no pods by policy; leave it out, or set webhook" .Capabilities.KubeVersion.Version) }}
{{- end }}
{{- if and .Values.controller.enabled (eq (int .Values.controller.metricsPort) 8443) }}
{{- fail "controller.metricsPort 8443 is the port that kube-scheduler asks: give another one" }}
{{- end }}
{{- if .Values.controller.enabled }}
{{- $roles := (lookup "rbac.authorization.k8s.io/v1" "ClusterRole" "" "").items }}
{{- with include "gpu-device-plugin.otherController" (dict "root" . "roles" $roles) | trim }}
{{- fail (printf "the release %s has a controller, which places pods on the nodes of every release: set controller.enabled to false here" .) }}
{{- end }}
{{- end }}
{{- if and .Values.controller.networkPolicy.enabled (not .Values.controller.networkPolicy.from) }}
{{- fail "controller.networkPolicy.enabled needs controller.networkPolicy.from: the API servers, which call the webhook, and a kube-scheduler of the cluster's own; with an empty list everybody would be let in" }}
{{- end }}
{{- range $key, $default := dict "koordinator" false "hami" false "requireModel" true "modelsFailurePolicy" "Fail" "profilesFailurePolicy" "Ignore" }}
{{- $value := get $.Values.controller.webhook $key }}
{{- if and (not $.Values.controller.webhook.enabled) (ne $value $default) }}
{{- fail (printf "controller.webhook.%s=%v needs controller.webhook.enabled, and controller.enabled: without them there is no webhook that looks at it" $key $value) }}
{{- end }}
{{- end }}
{{- if and .Values.controller.webhook.clientCaConfigMap (not .Values.controller.webhook.clientName) }}
{{- fail "controller.webhook.clientCaConfigMap needs controller.webhook.clientName: such a CA signs for others too" }}
{{- end }}
{{- if and .Values.controller.webhook.caBundle (not .Values.controller.tls.secretName) }}
{{- fail "controller.webhook.caBundle needs controller.tls.secretName: it is the CA of the certificate there" }}
{{- end }}
{{- if and .Values.controller.tls.certManager.enabled (or .Values.controller.tls.secretName .Values.controller.tls.clientSecretName) }}
{{- fail "controller.tls.certManager.enabled makes the Secrets itself: leave controller.tls.secretName and clientSecretName empty" }}
{{- end }}
{{- if and .Values.controller.tls.secretName (eq (include "gpu-device-plugin.hasScheduler" .) "true") (not .Values.controller.tls.clientSecretName) }}
{{- fail "controller.tls.secretName with scheduler.enabled needs controller.tls.clientSecretName: the Secret of the scheduler's own certificate" }}
{{- end }}
{{- if and .Values.dra.enabled (semverCompare "<1.36-0" .Capabilities.KubeVersion.Version) }}
{{- fail (printf "dra.enabled needs Kubernetes 1.36 or later, this cluster has %s: its API server changes no pods by policy, and its scheduler does not divide cards; set dra.enabled to false" .Capabilities.KubeVersion.Version) }}
{{- end }}
{{- if and (eq .Values.allocationApi "dra") (not .Values.dra.enabled) }}
{{- fail "allocationApi dra needs dra.enabled: without it no pod gets a claim" }}
{{- end }}
{{- if and .Values.dra.enabled (not .Values.policies.enabled) }}
{{- fail "dra.enabled needs policies.enabled: without them a claim written by hand passes every rule" }}
{{- end }}
{{- /* A template in a namespace that is not there would leave the release half installed. */ -}}
{{- if and .Values.dra.enabled (lookup "v1" "Node" "" "").items }}
{{- range without .Values.dra.namespaces (include "gpu-device-plugin.namespace" .) }}
{{- if not (lookup "v1" "Namespace" "" .) }}
{{- fail (printf "dra.namespaces: there is no namespace %s; make it first, or leave it out" .) }}
{{- end }}
{{- end }}
{{- end }}
{{- if has .Values.dra.wholeCards (list "aliyun.com/gpu-mem" "aliyun.com/gpu-core.percentage" "aliyun.com/gpu-count") }}
{{- fail (printf "dra.wholeCards %s is the name of a slice's amount, which the policies make into other claims: give whole cards another name, for instance nvidia.com/gpu" .Values.dra.wholeCards) }}
{{- end }}
{{- $kubelet := clean .Values.kubeletDir }}
{{- $taken := list "/etc/gpu-device-plugin" "/var/lib/gpu-device-plugin" "/run/gpu-device-plugin" "/sys/fs/cgroup" (clean .Values.cdiDir) (clean .Values.mps.root) }}
{{- range list "device-plugins" "pod-resources" "pods-api" "plugins_registry" "plugins/gpu-device-plugin" }}
{{- $taken = append $taken (printf "%s/%s" $kubelet .) }}
{{- end }}
{{- if has (clean .Values.libraryDir) $taken }}
{{- fail (printf "libraryDir %s: the agent has something else there already, and a pod mounts a path once; name a directory of the library's own, such as /usr/local/lib/gpu-device-plugin" .Values.libraryDir) }}
{{- end }}
{{- range compact (list .Values.kubeletDir .Values.libraryDir .Values.driverRoot .Values.nvmlLibrary) }}
{{- if or (eq . "/etc") (eq . "/usr") (eq . "/var") (has ".." (splitList "/" .)) }}
{{- fail (printf "%s is no path for this: name the thing itself, without .." .) }}
{{- end }}
{{- end }}
{{- end }}

{{/*
The default image is in no registry. Where helm reaches a cluster, the nodes say which images they have
(the kubelet tells up to 50 of them, the largest first); a tag or a digest is the word of who sets it, and
what a registry has, helm cannot know.
*/}}
{{- define "gpu-device-plugin.checkImage" -}}
{{- if and (eq (include "gpu-device-plugin.isImageMissing" .) "true") (not (or .Values.image.tag .Values.image.digest)) }}
{{- fail (printf "no image is published, and no node has %s: build one, push it and set image.repository and image.tag, or load it on the nodes. If it was loaded a moment ago, set image.tag too" (include "gpu-device-plugin.image" .)) }}
{{- end }}
{{- end }}

{{/* "true" where the image is of localhost/, which no node can pull, and no node says that it has it. */}}
{{- define "gpu-device-plugin.isImageMissing" -}}
{{- $nodes := (lookup "v1" "Node" "" "").items }}
{{- $wanted := include "gpu-device-plugin.image" . }}
{{- $found := false }}
{{- range $node := $nodes }}
{{- range ($node.status).images }}
{{- if has $wanted (.names | default list) }}{{ $found = true }}{{ end }}
{{- end }}
{{- end }}
{{- if and $nodes (hasPrefix "localhost/" $wanted) (not $found) }}true{{ end }}
{{- end }}

{{/*
What every agent would refuse in one of NVIDIA's configuration files as far as it shows in one key, by the schema of the
types that it is read with (python -m tools.nvidia_schema); the rest only the agent knows.
*/}}
{{- define "gpu-device-plugin.checkConfig" -}}
{{- $file := printf "config.map.%s" .name }}
{{- $sharing := .content.sharing | default dict }}
{{- with .content.Error }}
{{- fail (printf "%s is no YAML object: %s" $file .) }}
{{- end }}
{{- with .content.version }}
{{- if ne (toString .) "v1" }}
{{- fail (printf "%s: unknown version %v, NVIDIA's configuration has v1" $file .) }}
{{- end }}
{{- end }}
{{- if and (kindIs "map" $sharing) $sharing.timeSlicing $sharing.mps }}
{{- fail (printf "%s: sharing.timeSlicing and sharing.mps exclude each other" $file) }}
{{- end }}
{{- include "gpu-device-plugin.checkValue" (dict "at" $file "value" .content "schema" .schema "file" .schema) }}
{{- end }}

{{/* The paths at which a schema has a key, each after " or ". */}}
{{- define "gpu-device-plugin.placesOf" -}}
{{- $of := . }}
{{- range $name, $each := .schema.properties }}
{{- $path := printf "%s.%s" $of.at $name | trimPrefix "." }}
{{- if eq $name $of.key }} or {{ $path }}{{ end }}
{{- include "gpu-device-plugin.placesOf" (dict "at" $path "key" $of.key "schema" (default $each $each.items)) }}
{{- end }}
{{- end }}

{{/* Whether the value at a path of such a file is what the schema has; a key without a value is as if it were not there. */}}
{{- define "gpu-device-plugin.checkValue" -}}
{{- $at := .at }}
{{- $value := .value }}
{{- $schema := .schema }}
{{- $number := ternary "integer" "number" (eq (floor $value) (float64 $value)) }}
{{- $type := dict "map" "object" "slice" "array" "bool" "boolean" "string" "string" | dig (kindOf $value) $number }}
{{- if not (has $type $schema.type) }}
{{- fail (printf "%s: wanted %s, not %s" $at (join " or " $schema.type) (toJson $value)) }}
{{- end }}
{{- if and $schema.enum (not (has $value $schema.enum)) }}
{{- fail (printf "%s: %v is none of %s" $at $value (join ", " $schema.enum)) }}
{{- end }}
{{- if and (eq $type "string") $schema.pattern (not (regexMatch $schema.pattern (toString $value))) }}
{{- fail (printf "%s: %q is not valid: wanted %s" $at $value $schema.pattern) }}
{{- end }}
{{- if and (hasKey $schema "minimum") (has $type (list "integer" "number")) (lt (float64 $value) $schema.minimum) }}
{{- fail (printf "%s: %v is less than %.0f" $at $value $schema.minimum) }}
{{- end }}
{{- if and (hasKey $schema "maximum") (gt (float64 $value) $schema.maximum) }}
{{- fail (printf "%s: %v is more than %.0f" $at $value $schema.maximum) }}
{{- end }}
{{- if eq $type "array" }}
{{- if lt (len $value) (int $schema.minItems) }}
{{- fail (printf "%s: the list is empty" $at) }}
{{- end }}
{{- if and $schema.maxItems (gt (len $value) (int $schema.maxItems)) }}
{{- fail (printf "%s: wanted at most %v of them, not %s" $at $schema.maxItems (toJson $value)) }}
{{- end }}
{{- range $place, $each := $value }}
{{- include "gpu-device-plugin.checkValue" (dict "at" (printf "%s[%d]" $at $place) "value" $each "schema" $schema.items "file" $.file) }}
{{- end }}
{{- else if eq $type "object" }}
{{- range $schema.required }}
{{- if kindIs "invalid" (index $value .) }}
{{- fail (printf "%s: %s is missing" $at .) }}
{{- end }}
{{- end }}
{{- range $key, $each := $value }}
{{- $known := index $schema.properties $key }}
{{- if and (not $known) (not (kindIs "invalid" $each)) }}
{{- $places := include "gpu-device-plugin.placesOf" (dict "at" "" "key" $key "schema" $.file) | trimPrefix " or " }}
{{- $here := printf "the keys here are %s" (keys $schema.properties | sortAlpha | join ", ") }}
{{- fail (printf "%s: unknown key %s; %s" $at $key (empty $places | ternary $here (printf "it belongs to %s" $places))) }}
{{- end }}
{{- if not (kindIs "invalid" $each) }}
{{- include "gpu-device-plugin.checkValue" (dict "at" (printf "%s.%s" $at $key) "value" $each "schema" $known "file" $.file) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
