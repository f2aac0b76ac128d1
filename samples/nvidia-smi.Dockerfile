# NVIDIA's own nvidia-smi, from Debian's package, to look at slices with. It is non-free software and
# not part of this project. It accepts only a driver of its own version, which is in /version:
#   docker build --load --tag nvidia-smi:1 --file samples/nvidia-smi.Dockerfile .
#   docker run --rm nvidia-smi:1 cat /version
FROM debian:bookworm-slim
RUN sed -i 's/^Components: .*/Components: main non-free/' /etc/apt/sources.list.d/debian.sources \
 && apt-get update && cd /tmp && apt-get download nvidia-smi \
 && dpkg-deb -f nvidia-smi_*.deb Version | cut -d- -f1 > /version && dpkg-deb -x nvidia-smi_*.deb /tmp/smi \
 && cp /tmp/smi/usr/lib/nvidia/*/nvidia-smi /usr/bin/ && rm -r /tmp/* /var/lib/apt/lists/*
CMD ["sleep", "infinity"]
