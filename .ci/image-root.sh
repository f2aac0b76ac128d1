#!/bin/bash
# The image's root file system for one machine, from Debian packages that are unpacked and never run:
#   .ci/image-root.sh amd64|arm64 DIRECTORY
# Runs in the Dockerfile's build stage. Versions and digests are those of debian-packages.txt beside this file;
# newer ones, on any machine with apt for Debian 12 (commit what it writes):
#   .ci/image-root.sh lock
set -euo pipefail
lock=$(dirname "$(realpath "$0")")/debian-packages.txt
# Python without pip, and the libraries that its modules and our wheels load.
packages=(base-files libc6 gcc-12-base libgcc-s1 libstdc++6 zlib1g libexpat1 libssl3 libffi8 libbz2-1.0 liblzma5
  libuuid1 libcrypt1 python3.11-minimal libpython3.11-minimal libpython3.11-stdlib)

if [ "$1" = lock ]; then
  # Lists of its own: the machine's architectures and packages stay as they are.
  own=$(mktemp -d)
  trap 'rm -rf "$own"' EXIT
  chmod 755 "$own"
  mkdir -p "$own/lists" "$own/cache"
  options=(-o "Dir::State::lists=$own/lists" -o "Dir::Cache=$own/cache" -o Dir::State::status=/dev/null)
  options+=(-o APT::Architectures::=amd64 -o APT::Architectures::=arm64 -o APT::Default-Release=)
  apt-get "${options[@]}" update -q >&2
  date -u '+# as of %Y%m%dT%H%M%SZ' >"$own/lock"
  for architecture in amd64 arm64; do
    apt-cache "${options[@]}" show --no-all-versions "${packages[@]/%/:$architecture}" |
      awk '/^Package:/ { name = $2 } /^Version:/ { version = $2; gsub(":", "%3a", version) }
        /^Architecture:/ { machine = $2 } /^SHA256:/ { print $2 "  " name "_" version "_" machine ".deb" }'
  done >>"$own/lock"
  mv "$own/lock" "$lock"
  exit
fi

architecture=$1
root=$2
# Modules of the standard library whose own libraries are not here, and Python's own tests.
left_out=()
for module in _curses _dbm _sqlite3 _test nis ossaudiodev readline; do
  left_out+=(--exclude "./usr/lib/python3.11/lib-dynload/$module*")
done

case "$architecture" in
  amd64) machine=x86_64 ;;
  arm64) machine=aarch64 ;;
  *) echo "image-root.sh: no image for $architecture: amd64 and arm64 are built" >&2; exit 1 ;;
esac
echo "machine=$machine" >/image.env

dpkg --add-architecture "$architecture"
apt-get update -q
archives=$(mktemp -d)
chmod 755 "$archives"
wanted=()
while IFS=_ read -r name version _; do wanted+=("$name:$architecture=${version//%3a/:}"); done \
  < <(sed -n "s/^[0-9a-f]*  \(.*_$architecture\.deb\)$/\1/p" "$lock")
[ ${#wanted[@]} = ${#packages[@]} ] || { echo "image-root.sh: $lock does not name every package for $architecture" >&2; exit 1; }
cd "$archives"
# A mirror has the newest versions only; an archive of Debian's snapshots has every one.
if ! apt-get download -q "${wanted[@]}"; then
  [ -n "${SNAPSHOTS:-}" ] || { echo "image-root.sh: the mirror lacks a version that $lock names: set SNAPSHOTS" \
    "(docs/install.md, Old package versions)" >&2; exit 1; }
  for archive in debian debian-security; do
    suite=bookworm; [ $archive = debian ] || suite=bookworm-security
    echo "deb [check-valid-until=no] ${SNAPSHOTS%/}/$archive/$(sed -n 's/^# as of //p' "$lock") $suite main"
  done >/etc/apt/sources.list.d/snapshot.list
  apt-get update -q
  apt-get download -q "${wanted[@]}"
fi
grep "_$architecture\.deb$" "$lock" | sha256sum --check --strict --quiet
cd - >/dev/null

# Since Debian 12 /bin and /lib are links; packages still name files by both ways.
mkdir -p "$root"/usr/{bin,sbin,lib,lib64} "$root/var/lib/dpkg/status.d"
for name in bin sbin lib lib64; do ln -s "usr/$name" "$root/$name"; done
for archive in "$archives"/*.deb; do
  # What nobody reads in a container stays out; copyright files stay in.
  dpkg-deb --fsys-tarfile "$archive" | tar -x -C "$root" --keep-directory-symlink \
    --exclude './usr/share/man/*' --exclude './usr/share/lintian/*' --exclude './usr/share/info/*' \
    --exclude './usr/share/locale/*' --exclude './usr/share/doc/*/[!c]*' --exclude './usr/share/doc/*/c[!o]*' \
    "${left_out[@]}"
  # Where scanners look for packages of an image that has no dpkg.
  dpkg-deb --field "$archive" >"$root/var/lib/dpkg/status.d/$(dpkg-deb --field "$archive" Package)"
done
ln -s python3.11 "$root/usr/bin/python3"

printf '%s\n' root:x:0:0:root:/:/usr/sbin/nologin nonroot:x:65532:65532:nonroot:/:/usr/sbin/nologin >"$root/etc/passwd"
printf '%s\n' root:x:0: nonroot:x:65532: >"$root/etc/group"
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
# Debian keeps some directories for groups that are not here.
chown -R 0:0 "$root"
find "$root" ! -type l ! -name tmp -exec chmod a-s,go-w {} +
