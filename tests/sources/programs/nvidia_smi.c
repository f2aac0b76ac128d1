/*
 * What the sources show of nvidia-smi, asked of NVML as NVIDIA's program asks:
 * its table, and its list with -L. It accepts a driver of any version, and
 * prints in the widths of that version.
 */
#define NVML_NO_UNVERSIONED_FUNC_DEFS 1
#include <nvml.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WIDE = 41, NARROW = 31, WIDE_SINCE = 530, PROCESSES = 64 };

static void *driver;

#define CALL(name, ...) (((__typeof__(name) *)dlsym(driver, #name))(__VA_ARGS__))

typedef nvmlReturn_t of_the_first_version(nvmlDevice_t, unsigned *, nvmlProcessInfo_v1_t *);

static void rule(char edge, char line, char end, int first)
{
	const int widths[] = {first, 22, 22};

	for (int i = 0; i < 3; i++) {
		putchar(i ? '+' : edge);
		for (int j = 0; j < widths[i]; j++)
			putchar(line);
	}
	printf("%c\n", end);
}

static void box(const char *edges, int first)
{
	printf("%c", edges[0]);
	for (int i = 0; i < first + 46; i++)
		putchar(edges[1]);
	printf("%c\n", edges[0]);
}

static void row(int first, const char *left, const char *middle, const char *right)
{
	printf("| %-*s| %-20s | %20s |\n", first - 1, left, middle, right);
}

static void show_card(nvmlDevice_t card, unsigned number, int first)
{
	char name[96] = "", left[128], middle[64], right[64];
	const char *states[] = {"Off", "On"};
	unsigned celsius = 0, milliwatts = 0, limit = 0, mode = 0, pending = 0;
	unsigned long long errors = 0;
	nvmlEnableState_t persistence = 0, display = 0;
	nvmlPstates_t level = 0;
	nvmlPciInfo_t pci = {0};
	nvmlMemory_t memory = {0};
	nvmlUtilization_t busy = {0};
	const int room = first == WIDE ? 27 : 18;

	CALL(nvmlDeviceGetName, card, name, sizeof(name));
	CALL(nvmlDeviceGetPersistenceMode, card, &persistence);
	CALL(nvmlDeviceGetDisplayActive, card, &display);
	CALL(nvmlDeviceGetPciInfo_v3, card, &pci);
	CALL(nvmlDeviceGetTemperature, card, NVML_TEMPERATURE_GPU, &celsius);
	CALL(nvmlDeviceGetPerformanceState, card, &level);
	CALL(nvmlDeviceGetPowerUsage, card, &milliwatts);
	CALL(nvmlDeviceGetEnforcedPowerLimit, card, &limit);
	CALL(nvmlDeviceGetMemoryInfo, card, &memory);
	CALL(nvmlDeviceGetUtilizationRates, card, &busy);
	if (strlen(name) > (size_t)room)
		snprintf(name + room - 3, 4, "...");
	snprintf(left, sizeof(left), "%3u  %-*s  %3s", number, room, name, states[persistence & 1]);
	snprintf(middle, sizeof(middle), "%s %s", pci.busId, states[display & 1]);
	if (CALL(nvmlDeviceGetTotalEccErrors, card, NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
		 NVML_VOLATILE_ECC, &errors))
		snprintf(right, sizeof(right), "N/A");
	else
		snprintf(right, sizeof(right), "%llu", errors);
	row(first, left, middle, right);
	snprintf(left, sizeof(left), "N/A  %3uC   P%d  %4uW / %3uW", celsius, level,
		 (milliwatts + 500) / 1000, limit / 1000);
	snprintf(middle, sizeof(middle), "%6lluMiB / %6lluMiB", memory.used >> 20,
		 memory.total >> 20);
	snprintf(right, sizeof(right), "%3u%%      Default", busy.gpu);
	row(first, left, middle, right);
	if (CALL(nvmlDeviceGetMigMode, card, &mode, &pending))
		row(first, "", "", "N/A");
	else
		row(first, "", "", mode ? "Enabled" : "Disabled");
}

static void show_processes(nvmlDevice_t card, unsigned number)
{
	nvmlProcessInfo_v1_t found[PROCESSES];
	unsigned count = PROCESSES;

	if (((of_the_first_version *)dlsym(driver, "nvmlDeviceGetComputeRunningProcesses"))(
		    card, &count, found))
		return;
	for (unsigned i = 0; i < count; i++)
		printf("| %4u   N/A  N/A  %8u      C   %-28s %6lluMiB |\n", number, found[i].pid,
		       "program", found[i].usedGpuMemory >> 20);
}

static nvmlDevice_t card_of(unsigned number)
{
	nvmlDevice_t card = NULL;

	CALL(nvmlDeviceGetHandleByIndex_v2, number, &card);
	return card;
}

static void table(unsigned cards)
{
	char version[80] = "", text[256], date[64];
	int cuda = 0;
	const time_t now = time(NULL);

	CALL(nvmlSystemGetDriverVersion, version, sizeof(version));
	CALL(nvmlSystemGetCudaDriverVersion_v2, &cuda);
	const int first = atoi(version) >= WIDE_SINCE ? WIDE : NARROW;

	strftime(date, sizeof(date), "%a %b %e %H:%M:%S %Y", localtime(&now));
	puts(date);
	box("+-", first);
	snprintf(text, sizeof(text), "NVIDIA-SMI %s   Driver Version: %s   CUDA Version: %d.%d",
		 version, version, cuda / 1000, cuda % 1000 / 10);
	printf("| %-*s|\n", first + 45, text);
	rule('|', '-', '+', first);
	row(first, "GPU  Name        Persistence-M", "Bus-Id        Disp.A",
	    "Volatile Uncorr. ECC");
	row(first, "Fan  Temp  Perf  Pwr:Usage/Cap", "        Memory-Usage",
	    "GPU-Util  Compute M.");
	row(first, "", "", "MIG M.");
	rule('|', '=', '|', first);
	for (unsigned i = 0; i < cards; i++) {
		show_card(card_of(i), i, first);
		rule('+', '-', '+', first);
	}
	putchar('\n');
	box("+-", first);
	printf("| %-*s|\n", first + 45, "Processes:");
	printf("| %-*s|\n", first + 45,
	       " GPU   GI   CI        PID   Type   Process name    GPU Memory");
	printf("| %-*s|\n", first + 45, "       ID   ID                                     Usage");
	box("|=", first);
	for (unsigned i = 0; i < cards; i++)
		show_processes(card_of(i), i);
	box("+-", first);
}

static void list(unsigned cards)
{
	char name[96], uuid[96];

	for (unsigned i = 0; i < cards; i++) {
		const nvmlDevice_t card = card_of(i);
		unsigned most = 0;
		nvmlDevice_t instance;

		CALL(nvmlDeviceGetName, card, name, sizeof(name));
		CALL(nvmlDeviceGetUUID, card, uuid, sizeof(uuid));
		printf("GPU %u: %s (UUID: %s)\n", i, name, uuid);
		CALL(nvmlDeviceGetMaxMigDeviceCount, card, &most);
		for (unsigned j = 0; j < most; j++) {
			if (CALL(nvmlDeviceGetMigDeviceHandleByIndex, card, j, &instance))
				continue;
			CALL(nvmlDeviceGetName, instance, name, sizeof(name));
			CALL(nvmlDeviceGetUUID, instance, uuid, sizeof(uuid));
			const char *profile = strstr(name, "MIG ");

			printf("  %-15s Device %2u: (UUID: %s)\n", profile ? profile : name, j,
			       uuid);
		}
	}
}

int main(int count, char *words[])
{
	unsigned cards = 0;

	driver = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	if (!driver || CALL(nvmlInit_v2) || CALL(nvmlDeviceGetCount_v2, &cards)) {
		puts("NVIDIA-SMI has failed because it couldn't communicate with the "
		     "NVIDIA driver.");
		return 9;
	}
	if (count > 1 && !strcmp(words[1], "-L"))
		list(cards);
	else
		table(cards);
	return 0;
}
