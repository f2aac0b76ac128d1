"""Everything that speaks to the kubelet: its sockets and its checkpoint.

The only importer of grpc and google.protobuf. Bytes become domain values here, and
domain values bytes; what they mean is decided elsewhere.
"""
