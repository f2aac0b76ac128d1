/*
 * A process that uses a card, for tests with several: what it should do is in
 * its arguments, what it saw goes to stdout. It waits for a line on stdin
 * where the test wants to look meanwhile.
 */
#define NO_MAIN
#include "check.h"

#include <signal.h>
#include <unistd.h>

static void say_and_wait(const char *word)
{
	char line[16];

	puts(word);
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		exit(0);
}

/* hold MIB: has a context and so much memory. */
static void hold(char **words)
{
	CUdeviceptr address;

	begin();
	OK(cuMemAlloc_v2(&address, strtoull(words[0], NULL, 10) * MIB));
	say_and_wait("held");
}

/* free: free MiB of the card, seen with a context. */
static void tell_free(char **words)
{
	(void)words;
	begin();
	printf("%llu\n", (unsigned long long)(free_bytes() / MIB));
}

/* modules: free MiB before a module is loaded, after, and after a kernel of it has run. */
static void modules(char **words)
{
	CUmodule module;
	CUfunction function;
	size_t seen[3];

	(void)words;
	begin();
	seen[0] = free_bytes();
	OK(cuModuleLoadData(&module, code));
	seen[1] = free_bytes();
	OK(cuModuleGetFunction(&function, module, "spin_1"));
	OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
	seen[2] = free_bytes();
	printf("%lld %lld\n", (long long)((seen[0] - seen[1]) / MIB),
	       (long long)((seen[0] - seen[2]) / MIB));
}

/* use: allocates on each line of stdin, and tells how that went. */
static void use(char **words)
{
	CUdeviceptr memory;

	(void)words;
	begin();
	for (say_and_wait("ready");;) {
		char told[16];

		snprintf(told, sizeof(told), "%d", (int)cuMemAlloc_v2(&memory, MIB));
		say_and_wait(told);
	}
}

/*
 * work NS COUNT TENANTS: that many kernels after the starting line; the milliseconds they took.
 * So many tenants step together (steps.h), on the machine's clock if that is 0.
 */
static void work(char **words)
{
	uint64_t ns = strtoull(words[0], NULL, 10);
	long count = strtol(words[1], NULL, 10);
	unsigned tenants = (unsigned)strtoul(words[2], NULL, 10);
	CUstream stream_of_work;
	CUevent start;
	CUevent end;
	double took_ms;

	begin();
	stream_of_work = stream();
	start = event();
	end = event();
	spin(stream_of_work, 1);
	OK(cuStreamSynchronize(stream_of_work));
	say_and_wait("ready");
	if (tenants)
		CHECK(gpusim_step_together(tenants) == 0);
	OK(cuEventRecord(start, stream_of_work));
	for (long i = 0; i < count; i++)
		spin(stream_of_work, ns);
	OK(cuEventRecord(end, stream_of_work));
	took_ms = elapsed_ms(start, end);
	gpusim_step_apart();
	printf("%f\n", took_ms);
}

/* flood NS: kernels without end. */
static void flood(char **words)
{
	uint64_t ns = strtoull(words[0], NULL, 10);
	CUstream stream_of_work;

	begin();
	stream_of_work = stream();
	spin(stream_of_work, ns);
	say_and_wait("busy");
	for (;;)
		spin(stream_of_work, ns);
}

/* export MIB: allocates, writes a mark, and tells the IPC handle. */
static void export_memory(char **words)
{
	CUipcMemHandle handle;
	CUdeviceptr address;

	begin();
	OK(cuMemAlloc_v2(&address, strtoull(words[0], NULL, 10) * MIB));
	OK(cuMemsetD8_v2(address, 77, 64));
	OK(cuIpcGetMemHandle(&handle, address));
	for (size_t i = 0; i < sizeof(handle.reserved); i++)
		printf("%02x", (unsigned char)handle.reserved[i]);
	puts("");
	say_and_wait("exported");
}

/* import HANDLE: maps it; what that took of the card, and the mark; holds it until a line comes. */
static void import_memory(char **words)
{
	CUipcMemHandle handle;
	CUdeviceptr address;
	unsigned byte;
	size_t before;
	char told[8];
	char mark;

	for (size_t i = 0; i < sizeof(handle.reserved); i++) {
		CHECK_EQUAL(sscanf(words[0] + 2 * i, "%02x", &byte), 1);
		handle.reserved[i] = (char)byte;
	}
	begin();
	before = free_bytes();
	OK(cuIpcOpenMemHandle_v2(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	OK(cuMemcpyDtoH_v2(&mark, address, 1));
	printf("%lld ", (long long)(before - free_bytes()));
	snprintf(told, sizeof(told), "%d", mark);
	say_and_wait(told);
	OK(cuIpcCloseMemHandle(address));
}

/* devices: a line for each: ordinal, UUID's last byte but one field, name. */
static void devices(char **words)
{
	int count = 0;
	CUuuid uuid;
	char name[96];
	CUresult result = cuInit(0);

	(void)words;
	if (result == CUDA_SUCCESS)
		OK(cuDeviceGetCount(&count));
	for (int i = 0; i < count; i++) {
		OK(cuDeviceGetUuid_v2(&uuid, i));
		OK(cuDeviceGetName(name, sizeof(name), i));
		printf("%02x%02x%02x%02x %s\n", (unsigned char)uuid.bytes[0],
		       (unsigned char)uuid.bytes[1], (unsigned char)uuid.bytes[2],
		       (unsigned char)uuid.bytes[3], name);
	}
	printf("%d\n", result);
}

/* fork: what a child of an initialised process is told. */
static void fork_child(char **words)
{
	(void)words;
	begin();
	if (fork() == 0) {
		CUcontext context;
		int first = cuInit(0);

		printf("%d %d\n", first, cuDevicePrimaryCtxRetain(&context, 0));
		exit(0);
	}
}

static const struct {
	const char *name;
	void (*run)(char **words);
} actions[] = {
	{"hold", hold},       {"free", tell_free},       {"work", work},
	{"flood", flood},     {"export", export_memory}, {"import", import_memory},
	{"devices", devices}, {"fork", fork_child},      {"modules", modules},
	{"use", use},
};

int main(int count, char **words)
{
	for (size_t i = 0; count > 1 && i < sizeof(actions) / sizeof(actions[0]); i++) {
		if (strcmp(words[1], actions[i].name) == 0)
			return actions[i].run(words + 2), 0;
	}
	return 2;
}
