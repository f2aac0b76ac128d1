"""The kubelet's side of the house: its sockets and its checkpoint.

The only importer of grpc and google.protobuf. Bytes become domain values here, and
domain values bytes; what they mean is decided elsewhere.
"""
