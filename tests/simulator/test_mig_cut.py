"""A card is cut through NVML as the driver cuts it: in its places, and not while it is used."""

from tests.simulator.conftest import MakeNode
from tests.simulator.programs import end, hear, run, start, started

_IN_USE, _NO_ROOM, _NOT_SUPPORTED, _INVALID = 19, 23, 3, 2

_CUT = """
nvml.nvmlInit()
card = nvml.nvmlDeviceGetHandleByIndex(0)
status = nvml._nvmlReturn_t()
def mig(mode):
    result = nvml.nvmlLib.nvmlDeviceSetMigMode(card, mode, ctypes.byref(status))
    return [result, status.value]
def profile(slices):
    return nvml.nvmlDeviceGetGpuInstanceProfileInfo(card, slices).id
def compute(instance, slices):
    nvml.nvmlGpuInstanceCreateComputeInstance(instance, slices)
def names():
    found = []
    for i in range(7):
        try:
            found.append(nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, i)))
        except nvml.NVMLError:
            pass
    return [name.split(" MIG ")[1] for name in found]
"""


def test_a_card_is_put_into_mig_mode_and_cut(make_node: MakeNode) -> None:
    """A GPU instance without a compute instance is no MIG device; two of 3g.20gb fill the card."""
    node = make_node("a100", cards=1)
    seen = run(
        node,
        _CUT
        + """
before = error_of(nvml.nvmlDeviceGetGpuInstanceProfileInfo, card, 0)
on = mig(1)
half = profile(nvml.NVML_GPU_INSTANCE_PROFILE_3_SLICE)
one = nvml.nvmlDeviceCreateGpuInstance(card, half)
empty = names()
compute(one, nvml.NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE)
room = nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(card, half)
other = nvml.nvmlDeviceCreateGpuInstance(card, half)
compute(other, nvml.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE)
attributes = nvml.nvmlDeviceGetAttributes_v2(nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, 1))
say([before, on, empty, names(), room,
     error_of(nvml.nvmlDeviceCreateGpuInstance, card, half),
     [nvml.nvmlGpuInstanceGetInfo(i).placement.start for i in (one, other)],
     [attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount]])
""",
    )

    assert seen == [
        _NOT_SUPPORTED,
        [0, 0],
        [],
        ["3g.20gb", "1c.3g.20gb"],
        1,
        _NO_ROOM,
        [0, 4],
        [3, 1],
    ]
    uuids = [instance.uuid for instance in node.view().cards[0].instances]
    assert len(set(uuids)) == 2
    assert all(len(uuid) == len("MIG-") + 36 for uuid in uuids)


def test_instances_are_destroyed_from_the_inside_and_new_ones_are_others(
    make_node: MakeNode,
) -> None:
    """A GPU instance with a compute instance is in use, and so is MIG mode while there is one."""
    node = make_node("a100-mig", cards=1)
    before = {instance.uuid for instance in node.view().cards[0].instances}
    seen = run(
        node,
        _CUT
        + """
first = nvml.nvmlDeviceGetGpuInstanceById(card, 7)
refused = [error_of(nvml.nvmlGpuInstanceDestroy, first), mig(0)[0]]
for id in range(7, 14):
    instance = nvml.nvmlDeviceGetGpuInstanceById(card, id)
    nvml.nvmlComputeInstanceDestroy(nvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0))
    nvml.nvmlGpuInstanceDestroy(instance)
gone = names()
taken = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(
    card, profile(1), ctypes.byref(nvml.c_nvmlGpuInstancePlacement_t(2, 2)))
wrong = error_of(nvml.nvmlDeviceCreateGpuInstanceWithPlacement,
    card, profile(1), ctypes.byref(nvml.c_nvmlGpuInstancePlacement_t(2, 2)))
compute(taken, 1)
say([refused, gone, wrong, names(), nvml.nvmlGpuInstanceGetInfo(taken).placement.start])
""",
    )

    assert seen == [[_IN_USE, _IN_USE], [], _NO_ROOM, ["2g.10gb"], 2]
    after = {instance.uuid for instance in node.view().cards[0].instances}
    assert len(after) == 1
    assert not after & before


def test_what_is_used_is_not_cut(make_node: MakeNode) -> None:
    """MIG mode is pending while a process has the card; its instance is not destroyed."""
    node = make_node("a100", cards=1)
    use = 'control("gpusim_occupy", 0, ctypes.c_uint32({}), ctypes.c_uint64(MIB))'
    with started(node, use.format("0xffffffff") + '\nsay("holds")\nsys.stdin.read()') as user:
        assert hear(user) == "holds"
        read = _CUT + "say([mig(1), nvml.nvmlDeviceGetMigMode(card)])"
        assert run(node, read) == [[0, _IN_USE], [0, 1]]
    assert run(node, read) == [[0, 0], [1, 1]]
    node.cut(0, ["1g.5gb", "1c.2g.10gb"])
    user = start(node, use.format("8") + '\nsay("holds")\nsys.stdin.read()')
    destroy = """
say([error_of(nvml.nvmlComputeInstanceDestroy, nvml.nvmlGpuInstanceGetComputeInstanceById(
     nvml.nvmlDeviceGetGpuInstanceById(card, id), 0)) for id in (7, 8)])
"""
    try:
        assert hear(user) == "holds"
        assert run(node, _CUT + destroy) == [0, _IN_USE]
    finally:
        end(user)


def test_an_xid_of_an_instance_names_it(make_node: MakeNode) -> None:
    """By the ids of its GPU instance and compute instance; one of the card names none."""
    node = make_node("a100-mig", cards=1)
    with started(
        node,
        """
nvml.nvmlInit()
events = nvml.nvmlEventSetCreate()
nvml.nvmlDeviceRegisterEvents(nvml.nvmlDeviceGetHandleByIndex(0), 8, events)
say("waiting")
for _ in range(2):
    event = nvml.nvmlEventSetWait_v2(events, 120000)
    say([event.eventData, event.gpuInstanceId, event.computeInstanceId])
""",
    ) as waiting:
        assert hear(waiting) == "waiting"
        node.xid(0, 31, instance=2)
        assert hear(waiting) == [31, 9, 0]
        node.xid(0, 43)
        assert hear(waiting) == [43, 0xFFFFFFFF, 0xFFFFFFFF]
