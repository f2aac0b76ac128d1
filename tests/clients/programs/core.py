"""cuda-core: compile, link, launch, a graph, memory; and what goes through NVIDIA's runtime."""

from cuda.core import Device, LaunchConfig, Linker, LinkerOptions, Program, ProgramOptions, launch

SOURCE = 'extern "C" __global__ void add(float *values, int count) { values[0] += count; }'

card = Device(0)
card.set_current()
print(card.name, card.uuid, card.compute_capability)
stream = card.create_stream()
memory = card.allocate(1 << 20, stream=stream)
code = Program(SOURCE, "c++", ProgramOptions(arch="sm_90")).compile("cubin")
add = code.get_kernel("add")
print(add.num_arguments, add.arguments_info)
one = LaunchConfig(grid=1, block=32)
launch(stream, one, add, memory, 3)
stream.sync()
try:
    code.get_kernel("subtract")
except Exception as error:
    print(type(error).__name__, str(error).split(":")[0])

builder = card.create_graph_builder()
builder.begin_building()
for _ in range(10):
    launch(builder, one, add, memory, 3)
graph = builder.end_building().complete()
for _ in range(3):
    graph.launch(stream)
stream.sync()
graph.close()

movable = Program(SOURCE, "c++", ProgramOptions(arch="sm_90", relocatable_device_code=True))
linked = Linker(movable.compile("ptx"), options=LinkerOptions(arch="sm_90")).link("cubin")
print(linked.get_kernel("add").num_arguments)
memory.close(stream)

# Asked of NVIDIA's runtime library, which a simulated driver cannot satisfy (docs/simulator.md).
try:
    print(card.pci_bus_id)
except Exception as error:
    print(type(error).__name__, str(error).split(":")[0])
