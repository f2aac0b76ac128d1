/*
 * The simulated node: one file, mapped by every process that uses a simulated
 * driver library. This header is the only place that knows its layout;
 * libnvidia-ml.so.1 and libcuda.so.1 are both built on it, Python changes it
 * through the gpusim_ functions of control.h.
 *
 * Where a library finds the file, first match wins:
 *   1. the path in the environment variable GPU_SIMULATOR_STATE,
 *   2. gpu-simulator.state beside the library that was loaded,
 *   3. /run/gpu-simulator/state.
 * No file: no driver (NVML_ERROR_DRIVER_NOT_LOADED, CUDA_ERROR_NO_DEVICE).
 *
 * Rules: everything is read and written under gpusim_lock, except the words
 * marked "lock-free". A process may be killed at any instruction; the mutex is
 * robust, and what the dead held in the process table is reaped by the next
 * reader. Fields are only ever added in place of reserved bytes; anything else
 * is a new GPUSIM_LAYOUT. Zero is a sensible value of every field.
 */
#ifndef GPU_SIMULATOR_STATE_H
#define GPU_SIMULATOR_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GPUSIM_MAGIC 0x31304d4953555047ull /* "GPUSIM01", little endian */
#define GPUSIM_LAYOUT 1u

#define GPUSIM_CARDS 16u
#define GPUSIM_INSTANCES 7u
#define GPUSIM_MIG_PROFILES 8u
#define GPUSIM_COMPUTE_SLICES 7u /* of a card in MIG mode */
#define GPUSIM_MEMORY_SLICES 8u
#define GPUSIM_PROCESSES 1024u
#define GPUSIM_EVENTS 256u
#define GPUSIM_GROUPS 128u
#define GPUSIM_NO_INSTANCE 0xffffffffu

/* Reserved for the CUDA engine, whose own layout is src/simulator/cuda/engine.h. */
#define GPUSIM_ENGINE_NODE_BYTES (256ul * 1024ul - GPUSIM_GROUPS * sizeof(struct gpusim_group))
#define GPUSIM_ENGINE_CARD_BYTES (4u * 1024u * 1024u) /* of a sparse file */

#define GPUSIM_MIB (1024ull * 1024ull)

/* A way to cut a GPU instance off a card of this model. */
struct gpusim_mig_profile {
	uint32_t number; /* NVML_GPU_INSTANCE_PROFILE_* */
	uint32_t id;     /* the driver's: 19 for 1g.5gb */
	uint32_t compute_slices;
	uint32_t memory_slices;
	uint32_t multiprocessors;
	uint32_t count; /* most of them on one card; 0: there is no such profile */
	uint64_t memory_bytes;
	char name[16]; /* "1g.5gb" */
};

/* A GPU instance with at most one compute instance: together a MIG device. */
struct gpusim_instance {
	uint32_t present;
	uint32_t gpu_instance;     /* id, unique on the card, from 1 */
	uint32_t compute_instance; /* id inside the GPU instance */
	uint32_t gpu_profile;      /* NVML_GPU_INSTANCE_PROFILE_* */
	uint32_t compute_profile;  /* NVML_COMPUTE_INSTANCE_PROFILE_* */
	uint32_t compute_slices;   /* the 1 of 1g.5gb */
	uint32_t memory_slices;    /* of 8 */
	uint32_t placement_start;  /* in memory slices */
	uint32_t multiprocessors;
	uint32_t gpu_profile_id; /* the driver's number of the profile on this model: 19 for 1g.5gb
				  */
	uint64_t memory_bytes;
	char profile[32];    /* "1g.5gb" */
	char uuid[80];       /* "MIG-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" */
	uint32_t gpu_slices; /* compute slices of the GPU instance; 0: as many as compute_slices */
	uint32_t is_empty;   /* it has no compute instance, and so is no MIG device */
	uint8_t reserved[88];
};

struct gpusim_card {
	/* identity */
	uint32_t present; /* 0: unplugged; the slot keeps its identity */
	uint32_t lost;    /* fallen off the bus: every call says GPU_IS_LOST */
	uint32_t minor_number;
	uint32_t order; /* cards are enumerated by (order, slot) */
	char uuid[80];  /* "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" */
	char name[96];
	char serial[32];
	char vbios[32];
	char part_number[32];
	uint32_t pci_domain, pci_bus, pci_device;
	uint32_t pci_device_id; /* device << 16 | vendor */
	uint32_t pci_subsystem_id;
	uint32_t architecture; /* NVML_DEVICE_ARCH_* */
	uint32_t brand;        /* NVML_BRAND_* */
	uint32_t compute_major, compute_minor;
	uint32_t multiprocessors;
	uint32_t cores;
	uint32_t memory_bus_bits;

	/* memory; what processes hold is in the process table */
	uint64_t memory_total_bytes;
	uint64_t memory_reserved_bytes; /* never handed out, part of total */
	uint64_t memory_base_bytes; /* used by nobody in the table: idle driver, `simulate use` */

	/* sensors */
	uint32_t temperature_celsius;
	uint32_t fan_percent; /* meaningful when fans > 0 */
	uint32_t fans;
	uint32_t performance_state;
	uint32_t power_milliwatts, power_limit_milliwatts, power_min_milliwatts,
		power_max_milliwatts;
	uint32_t temperature_slowdown, temperature_shutdown;
	uint32_t graphics_mhz, memory_mhz, video_mhz;
	uint32_t graphics_max_mhz, memory_max_mhz, video_max_mhz;
	uint32_t gpu_percent; /* set by hand (`simulate use`) */
	uint32_t memory_percent;
	uint32_t engine_gpu_percent; /* set by the CUDA engine; counts while fresh */
	uint32_t engine_memory_percent;
	uint64_t engine_seen_ns; /* gpusim_sampling_ns() of the two above; stale after 1 s */
	uint64_t energy_millijoules;

	/* modes and health */
	uint32_t ecc_enabled;
	uint32_t ecc_supported;
	uint64_t ecc_corrected, ecc_uncorrected;
	uint32_t compute_mode; /* NVML_COMPUTEMODE_* */
	uint32_t persistence;
	uint32_t display_active;
	uint32_t recovery_action; /* NVML_GPU_RECOVERY_ACTION_* */
	uint32_t pcie_generation, pcie_width;
	uint32_t pcie_generation_max, pcie_width_max;

	/* MIG */
	uint32_t mig_capable;
	uint32_t mig_enabled, mig_pending;
	uint32_t memory_unified; /* the system's: NVML does not tell of it (GB10) */
	struct gpusim_instance instances[GPUSIM_INSTANCES];

	/* links: a digit for each slot, the NVLinks to that card; and those to NVSwitches */
	char nvlinks[32];
	uint32_t switch_links;
	uint32_t pci_switch, pci_socket; /* equal and not 0: below the same one */
	uint32_t instances_made;         /* through NVML: their UUIDs follow from it */
	struct gpusim_mig_profile profiles[GPUSIM_MIG_PROFILES];
	uint64_t held_peak_bytes; /* the most that processes held of it at any moment */
	uint32_t pageable_memory; /* it reaches what malloc gave (HMM, ATS) */
	uint32_t clique;          /* of an NVLink domain that spans nodes; 0: of none */
	uint32_t virtualization;  /* NVML_GPU_VIRTUALIZATION_MODE_* */
	uint32_t slow_seconds;    /* so long NVML's calls on it take, */
	char slow_call[64];       /* those whose names begin so */

	uint8_t reserved[504];
};

enum gpusim_process_kind {
	GPUSIM_PROCESS_COMPUTE = 1,
	GPUSIM_PROCESS_GRAPHICS = 2,
	GPUSIM_PROCESS_MPS = 4,
};

/* One process on one card (or one MIG slice of it). Slots never move. */
struct gpusim_process {
	uint32_t used;          /* 0: free slot */
	int32_t pid;            /* in the process's own pid namespace */
	uint64_t start_ticks;   /* field 22 of /proc/<pid>/stat */
	uint64_t pid_namespace; /* inode of /proc/self/ns/pid */
	uint32_t card;          /* slot of the card */
	uint32_t kind;          /* enum gpusim_process_kind */
	uint32_t gpu_instance;  /* GPUSIM_NO_INSTANCE without MIG */
	uint32_t compute_instance;
	uint64_t used_bytes;  /* context and allocations: what NVML reports */
	uint64_t busy_ns;     /* GPU time had so far, for utilisation */
	uint32_t gpu_percent; /* recent share, for nvmlDeviceGetProcessUtilization */
	uint32_t memory_percent;
	uint64_t seen_ns;        /* gpusim_sampling_ns() of the two above */
	char name[96];           /* executable, as the process saw it */
	uint64_t image;          /* random, new with every exec() */
	uint64_t imported_bytes; /* other processes': NVML lists them here too */
	uint32_t through_mps; /* a client of an MPS server; such clients share an exclusive card */
	uint32_t group;       /* slot of the cgroup that charged_bytes are charged to */
	uint64_t peak_bytes;  /* the most that used_bytes ever was */
	uint64_t charged_bytes;
	uint8_t reserved[24];
};

/* What the driver knows of a cgroup; cgroups.c has the rules. */
struct gpusim_group {
	char path[320];        /* below the root of the tree; "": a free slot */
	uint64_t inode;        /* of its directory, never used again; 0: nobody could see it */
	uint64_t driver_loads; /* when it was noted: a driver that is loaded again knows none */
	uint64_t touched;      /* by the count of groups_touched; the longest ago gives way */
	uint64_t limited;      /* a bit for each card with a limit of this group */
	uint64_t soft_bytes[GPUSIM_CARDS];
	uint64_t hard_bytes[GPUSIM_CARDS];
};

enum gpusim_accounting { GPUSIM_MISC, GPUSIM_DMEM, GPUSIM_NO_ACCOUNTING };

struct gpusim_event {
	uint64_t sequence; /* from 1; 0: never written */
	uint64_t type;     /* nvmlEventType* */
	uint64_t value;    /* the XID */
	uint64_t time_ns;  /* CLOCK_REALTIME */
	uint32_t card;
	uint32_t gpu_instance, compute_instance;
	uint32_t reserved;
};

struct gpusim_node {
	uint64_t magic; /* written last by the creator */
	uint32_t layout;
	uint32_t bytes;        /* sizeof(struct gpusim_node) */
	pthread_mutex_t mutex; /* process-shared, robust */
	uint8_t mutex_room[64 - sizeof(pthread_mutex_t) % 64];

	/* lock-free words: readers may sleep on them with futex() */
	_Atomic uint32_t hang;              /* while not 0, every driver call blocks */
	_Atomic uint32_t change;            /* bumped and woken by every event and control change */
	_Atomic uint32_t clock_speed_milli; /* simulated over real time x 1000; 0 means 1000 */
	_Atomic uint32_t reserved_word;
	_Atomic uint64_t generation;     /* bumped when the inventory changes */
	_Atomic uint64_t event_sequence; /* of the newest event */

	uint64_t created_ns;     /* CLOCK_REALTIME */
	uint64_t driver_loads;   /* 1 at creation, +1 for each driver upgrade */
	char driver_version[80]; /* "535.309.01" */
	char nvml_version[80];   /* "12.535.309.01" */
	uint32_t cuda_version;   /* 12020 for 12.2 */
	uint32_t cards_count;    /* slots in use, plugged in or not */
	char profile[64];
	_Atomic uint64_t stepped_ns; /* where time stands while it moves in steps; else 0 */
	uint64_t host_pid_namespace; /* the creator's: inode of /proc/self/ns/pid */
	uint64_t groups_touched;
	uint32_t memory_accounting;  /* enum gpusim_accounting: how memory is counted by cgroup */
	uint32_t unset_is_not_found; /* no limit set: NOT_FOUND as nvml.h says, not as the backend
					does */
	uint8_t reserved[992];

	struct gpusim_card cards[GPUSIM_CARDS];
	struct gpusim_process processes[GPUSIM_PROCESSES];
	struct gpusim_event events[GPUSIM_EVENTS]; /* slot: sequence % GPUSIM_EVENTS */

	_Alignas(4096) uint8_t engine_node[GPUSIM_ENGINE_NODE_BYTES];
	struct gpusim_group groups[GPUSIM_GROUPS];
	_Alignas(4096) uint8_t engine_card[GPUSIM_CARDS][GPUSIM_ENGINE_CARD_BYTES];
};

_Static_assert(sizeof(pthread_mutex_t) <= 64, "the mutex has its cache line");

/*
 * attach: the node of this process, or NULL when there is no file or it is not
 * one of this simulator. Mapped once and kept for the life of the process (closing the file
 * would drop the liveness locks below). Threads may share it. `refresh` looks
 * whether another file stands at the path now (a node created again).
 */
struct gpusim_node *gpusim_attach(bool refresh);

/* The path gpusim_attach would use now. Returns false when it does not fit. */
bool gpusim_state_path(char *path, size_t bytes);

/* Map a given file for a while; give it back with gpusim_unmap. errno is set on NULL. */
struct gpusim_node *gpusim_map_path(const char *path);
void gpusim_unmap(struct gpusim_node *node);

/* The node's lock. Recovers from a dead owner; never fails, never recursive. */
void gpusim_lock(struct gpusim_node *node);
void gpusim_unlock(struct gpusim_node *node);

/* Blocks while the hang flag is set. Call it first in every driver entry, without the lock. */
void gpusim_wait_while_hanging(struct gpusim_node *node);

/* Announce a change: bump the word and wake who sleeps on it. */
void gpusim_announce(struct gpusim_node *node);
/* The clock of samples: CLOCK_MONOTONIC, or that of the steps, or a slow machine's were all old. */
uint64_t gpusim_sampling_ns(const struct gpusim_node *node);
/* Sleep until the word is no longer `seen`, at most `milliseconds`. */
void gpusim_await_change(struct gpusim_node *node, uint32_t seen, unsigned milliseconds);

/* --- under the lock ------------------------------------------------------------- */

/*
 * This process's slot on a card (and MIG slice), claimed if it has none.
 * NULL when the table is full. The slot lives until released or until the
 * process ends or calls exec(): it holds a POSIX lock on a byte of the state
 * file, which the kernel drops and translates between pid namespaces. So never
 * close a descriptor of the state file in a process that holds a slot.
 */
struct gpusim_process *gpusim_process_claim(struct gpusim_node *node, uint32_t card,
					    uint32_t gpu_instance, uint32_t compute_instance,
					    uint32_t kind);
void gpusim_process_release(struct gpusim_node *node, struct gpusim_process *process);

/* Free the slots of dead processes; returns how many. Cheap when the table is short. */
unsigned gpusim_processes_reap(struct gpusim_node *node);

/* The process's pid as the caller's pid namespace sees it; 0 if it is not in there. */
int32_t gpusim_process_visible_pid(const struct gpusim_node *node,
				   const struct gpusim_process *process);
uint64_t gpusim_current_pid_namespace(void);

/* What NVML tells this process of processes on the cards. */
enum gpusim_told {
	GPUSIM_TOLD_ALL,     /* pids and memory */
	GPUSIM_TOLD_INNER,   /* of strangers too, by the pids of their own namespaces */
	GPUSIM_TOLD_NO_SIZE, /* pids, and 0 bytes */
	GPUSIM_TOLD_NOTHING, /* nobody is listed, the reader neither */
};
/* As GPU_SIMULATOR_NVML_PIDS says, else as the driver's version has it in a pid namespace. */
enum gpusim_told gpusim_told(const struct gpusim_node *node);
/* Utilisation by process came with pids of containers later than memory did. */
bool gpusim_tells_utilisation(const struct gpusim_node *node);

/* Bytes taken on a card: reserved + base + processes. Dead processes are not counted. */
uint64_t gpusim_card_used_bytes(struct gpusim_node *node, uint32_t card);
/* Bytes that processes hold in one MIG slice. */
uint64_t gpusim_instance_used_bytes(struct gpusim_node *node, uint32_t card, uint32_t gpu_instance);

/*
 * The cgroup of that path and inode (0: unknown), noted if it is new; NULL: the driver counts
 * no memory of this card by cgroup.
 */
struct gpusim_group *gpusim_group_at(struct gpusim_node *node, uint32_t card, const char *path,
				     uint64_t inode);
/* That of the calling process: GPU_SIMULATOR_CGROUP, else by /proc/self/cgroup. */
struct gpusim_group *gpusim_own_group(struct gpusim_node *node, uint32_t card);
/* Bytes charged to it, with dmem to those below it too. */
uint64_t gpusim_group_used(const struct gpusim_node *node, const struct gpusim_group *group,
			   uint32_t card);
/* Whether so many bytes more are within the limits that bind the group; NULL: always. */
bool gpusim_group_allows(const struct gpusim_node *node, const struct gpusim_group *group,
			 uint32_t card, uint64_t bytes);
void gpusim_group_charge(const struct gpusim_node *node, const struct gpusim_group *group,
			 struct gpusim_process *process, uint64_t bytes);
/* Whether the calling process's own cgroup, none above it, has a hard limit, and what is charged.
 */
bool gpusim_own_limit(struct gpusim_node *node, uint32_t card, uint64_t *hard, uint64_t *used);

/* Append to the ring and wake the waiters; without an instance it is the whole card's. */
void gpusim_post_event(struct gpusim_node *node, uint32_t card,
		       const struct gpusim_instance *instance, uint64_t type, uint64_t value);

/* Whether there is a MIG device: a GPU instance with its compute instance. */
bool gpusim_is_mig_device(const struct gpusim_card *card, uint32_t instance);

/*
 * The slots this process may see, in enumeration order; returns how many.
 * Unplugged cards are left out, and those that NVIDIA_VISIBLE_DEVICES (UUIDs or
 * indexes, or a directory that has UUIDs as names; unset, "all" and "void" mean
 * every card, "none" none) leaves out: the container runtime's part in a
 * simulated container.
 */
unsigned gpusim_visible_cards(const struct gpusim_node *node, uint32_t slots[GPUSIM_CARDS]);

/*
 * Whether this process may see a MIG instance of a visible card: not, if the list
 * names the card only by other instances of it.
 */
bool gpusim_sees_instance(const struct gpusim_card *card, unsigned instance);

#endif
