"""Giving up CAP_SYS_ADMIN, which the NVIDIA runtime wants before it shows MIG instances of others.

It looks at the container's capabilities when it creates the container; nothing needs them after.
"""

import ctypes
import os

from gpu_device_plugin.errors import StorageError

_SYS_ADMIN = 21
_VERSION_3 = 0x20080522
_PR_SET_NO_NEW_PRIVS = 38


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def give_up_sys_admin() -> None:
    """For this thread and all that it starts; call it before there is another thread.

    Programs that are started later do not get it back either, although they run as root.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = _Header(_VERSION_3, 0), (_Sets * 2)()
    _check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _check(libc.capget(ctypes.byref(header), sets))
    mask = ~(1 << _SYS_ADMIN) & 0xFFFFFFFF
    sets[0].effective &= mask
    sets[0].permitted &= mask
    sets[0].inheritable &= mask
    _check(libc.capset(ctypes.byref(header), sets))


def _check(result: int) -> None:
    if result:
        raise StorageError(f"cannot give up CAP_SYS_ADMIN: {os.strerror(ctypes.get_errno())}")
