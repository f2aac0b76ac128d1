#!/usr/bin/env bash
# Builds the agent's image and its bill of materials, without a registry and without running a
# daemon: .ci/image.sh [amd64] [arm64]; as root, on Debian, with buildah.
#
#   build/image/gpu-device-plugin-amd64.tar         OCI archive
#   build/image/gpu-device-plugin-amd64.spdx.json   what is in it
#
# The Dockerfile's base is a Debian that debootstrap makes here; BASE names an image to pull instead, and
# SNAPSHOTS an archive of Debian's snapshots for packages that the mirror has no more.
# What was built is kept outside the tree, by the content of what it was built from.
set -euo pipefail
cd "$(dirname "$0")/.."
# In a mount namespace of its own: what a broken build leaves mounted goes with it.
[ "$(id -u)" = 0 ] || { echo "image: buildah and debootstrap are run as root here" >&2; exit 1; }
[ -n "${IMAGE_MOUNTS:-}" ] || IMAGE_MOUNTS=private exec unshare --mount --propagation private -- .ci/image.sh "$@"
[ $# -gt 0 ] || set -- amd64 arm64
python=${PYTHON:-.venv/bin/python}
reference=localhost/gpu-device-plugin:$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
cache=${GPU_DEVICE_PLUGIN_CACHE:-$HOME/.cache/gpu-device-plugin}/image
release=bookworm
base=${BASE:-localhost/debian:$release-updated}

fail() { printf 'image: %s\n' "$*" >&2; exit 1; }

missing=()
for program in buildah debootstrap; do command -v "$program" >/dev/null || missing+=("$program"); done
if [ ${#missing[@]} -gt 0 ]; then
  command -v apt-get >/dev/null || fail "these Debian packages or their like are needed: ${missing[*]}"
  echo "==> installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  { apt-get install -qq -y --no-install-recommends "${missing[@]}" ||
    { apt-get update -qq && apt-get install -qq -y --no-install-recommends "${missing[@]}"; }; } >/dev/null 2>&1 ||
    fail "apt-get cannot install ${missing[*]}"
fi

# One build at a time: builders of several checkouts share the cache.
mkdir -p "$cache" build/image
exec 9>"$cache/lock"
flock 9
# What buildah noted of mounts is of a namespace that has ended.
rm -rf "$cache/run"

# What a build depends on; what git ignores (generated modules, bytecode) is none of it.
sources=(Dockerfile .dockerignore pyproject.toml .ci/{constraints.txt,debian-packages.txt,image-root.sh,image.sh,bill_of_materials.py}
  README.md LICENSE proto src)
content=$({
  echo "$base"
  git ls-files -co --exclude-standard -- "${sources[@]}" |
    sort | while read -r file; do [ ! -f "$file" ] || sha256sum "$file"; done
} | sha256sum | cut -c1-16)
# The last commit that changed any of it: later ones give the same image, with the same times in it.
read -r seconds commit < <(git log -1 --abbrev=12 --format='%ct %h' -- "${sources[@]}" 2>/dev/null || echo 0)
[ -z "$(git status --porcelain -- "${sources[@]}" 2>/dev/null)" ] || commit+=-dirty

buildah=(buildah --root "$cache/store" --runroot "$cache/run")
export BUILDAH_ISOLATION=chroot STORAGE_DRIVER=overlay
"${buildah[@]}" info >/dev/null 2>&1 || export STORAGE_DRIVER=vfs

provide_base() {
  if [ -n "${BASE:-}" ]; then return; fi
  if "${buildah[@]}" inspect --type image "$base" >/dev/null 2>&1; then return; fi
  echo "==> making a Debian with debootstrap"
  local root container
  root=$(mktemp -d -p "$cache")
  debootstrap --variant=minbase "$release" "$root" >"$cache/debootstrap.log" 2>&1 ||
    fail "debootstrap failed; $cache/debootstrap.log ends: $(tail -n 3 "$cache/debootstrap.log")"
  # As Debian's own images: debootstrap names the release alone, without its security updates.
  # The mirror is the one that debootstrap chose.
  local mirror
  mirror=$(awk '$1 == "deb" { print $2; exit }' "$root/etc/apt/sources.list")
  mirror=${mirror%/}
  printf 'deb %s main\n' "$mirror-security $release-security" "$mirror $release-updates" \
    >"$root/etc/apt/sources.list.d/updates.list"
  tar -C "$root" --numeric-owner -cf "$root.tar" .
  container=$("${buildah[@]}" from scratch)
  "${buildah[@]}" add --quiet "$container" "$root.tar" / >/dev/null
  "${buildah[@]}" commit --quiet "$container" "$base" >/dev/null
  "${buildah[@]}" rm "$container" >/dev/null
  rm -rf "$root" "$root.tar"
}

build() { # build ARCHITECTURE DIRECTORY
  local pull=never certificates=/etc/ssl/certs/ca-certificates.crt secret=()
  [ -z "${BASE:-}" ] || pull=missing
  [ ! -s "$certificates" ] || secret=(--secret "id=certificates,src=$certificates")
  # buildah of Debian 12 does not know the machine that builds by itself.
  "${buildah[@]}" build --quiet --pull=$pull --layers --platform "linux/$1" "${secret[@]}" \
    --build-arg "BUILDPLATFORM=linux/$(dpkg --print-architecture)" --build-arg "BASE=$base" --build-arg "SNAPSHOTS=${SNAPSHOTS:-}" \
    --build-arg "COMMIT=$commit" --timestamp "$seconds" \
    --tag "$reference-$1" . >"$2/build.log" 2>&1 || fail "the build failed: $(tail -n 30 "$2/build.log")"
  "${buildah[@]}" push --quiet "$reference-$1" "oci-archive:$2/image.tar:$reference"
  "$python" .ci/bill_of_materials.py "$2/image.tar" "$2/spdx.json"
}

for architecture in "$@"; do
  kept=$cache/$content-$architecture
  if [ ! -f "$kept/spdx.json" ]; then
    echo "==> building the image for $architecture; this takes minutes"
    # Layers of many changes: start from nothing before they fill the disk.
    if [ -d "$cache/store" ] && [ "$(du -sm "$cache/store" | cut -f1)" -gt 6000 ]; then
      rm -rf "$cache/store" "$cache/run"
    fi
    provide_base
    "${buildah[@]}" rm --all >/dev/null 2>&1 || true
    work=$(mktemp -d -p "$cache")
    trap 'rm -rf "$work"' EXIT
    build "$architecture" "$work"
    rm -rf "$kept"
    mv "$work" "$kept"
    find "$cache" -maxdepth 1 -name '*-*64' -mtime +7 -exec rm -r {} +
  fi
  # In one step: somebody may be reading the file that is there.
  for kind in tar spdx.json; do
    name=build/image/gpu-device-plugin-$architecture.$kind
    cp --reflink=auto "$kept/${kind/#tar/image.tar}" "$name.new"
    mv "$name.new" "$name"
  done
  echo "build/image/gpu-device-plugin-$architecture.tar"
done
