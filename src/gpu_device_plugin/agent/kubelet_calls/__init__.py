"""The device plugin calls of the kubelet: whose call it is, what it gets, the check at a start.

Sockets and protobuf are in `kubelet`, the choice of cards in `domain/fractions`.
"""
