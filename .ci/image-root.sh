#!/bin/bash
# The image's root file system for one machine, from Debian packages that are unpacked and never run:
#   .ci/image-root.sh amd64|arm64 DIRECTORY
# Runs in the Dockerfile's build stage. Debian's signatures are checked by apt.
set -euo pipefail
architecture=$1
root=$2
# Python without pip, and the libraries that its modules and our wheels load.
packages=(base-files libc6 gcc-12-base libgcc-s1 libstdc++6 zlib1g libexpat1 libssl3 libffi8 libbz2-1.0 liblzma5
  libuuid1 libcrypt1 python3.11-minimal libpython3.11-minimal libpython3.11-stdlib)
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
(cd "$archives" && apt-get download -q "${packages[@]/%/:$architecture}")

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
