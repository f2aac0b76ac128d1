#include "driver.h"

#include "clock.h"
#include "settings.h"

#include "../costs.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

_Static_assert(sizeof(struct engine) <= sizeof(((struct gpusim_node *)0)->engine_card[0]),
	       "the engine fits");
_Static_assert(sizeof(struct clock_area) <= sizeof(((struct gpusim_node *)0)->engine_node),
	       "the clock fits");
_Static_assert(ENGINE_TENANTS == GPUSIM_PROCESSES, "a tenant is a line of the process table");

struct driver driver;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool is_initialised;
static uint64_t stalled_until_ns; /* 0: it is not */
static bool is_held;              /* by a call that waits for room in a queue */
static pthread_t holder;
static void (*at_leave)(void);
static bool is_forked; /* initialised in a parent: of no use here, as with the real driver */

static void poison_child(void)
{
	pthread_mutex_init(&lock, NULL);
	is_forked = is_initialised;
	stalled_until_ns = 0;
	is_initialised = false;
	is_held = false;
}

/* As the environment or the node says, and no newer than the library. */
static int version_of(const struct gpusim_node *node)
{
	uint64_t of_node = node ? node->cuda_version : 0;
	uint64_t version = setting_number("GPU_SIMULATOR_CUDA_VERSION", of_node);

	if (version == 0 || version > INT32_MAX)
		version = 12090;
	return (int)version < driver_newest_version ? (int)version : driver_newest_version;
}

static void set_cost(uint64_t *place, enum gpusim_cost cost)
{
	bool is_said;
	const uint64_t value = gpusim_cost(cost, &is_said);

	if (is_said)
		*place = value;
}

/* What nobody says stays as it is. */
static void set_costs(struct engine *engine)
{
	struct engine_costs costs;

	engine_get_costs(engine, &costs);
	set_cost(&costs.event_ns, COST_EVENT_NS);
	set_cost(&costs.event_behind_ns, COST_EVENT_BEHIND_NS);
	set_cost(&costs.submit_ns, COST_SUBMIT_NS);
	set_cost(&costs.change_ns, COST_CHANGE_NS);
	set_cost(&costs.jitter_permille, COST_JITTER_PERMILLE);
	set_cost(&costs.clock_permille, COST_CLOCK_PERMILLE);
	set_cost(&costs.overlap_percent, COST_OVERLAP_PERCENT);
	set_cost(&costs.programmatic_percent, COST_PROGRAMMATIC_PERCENT);
	engine_set_costs(engine, &costs);
}

static void lay_out_engine(struct engine *engine)
{
	uint64_t timeslice_us = setting_number("GPU_SIMULATOR_TIMESLICE_US", 0);

	engine_lay_out(engine);
	set_costs(engine);
	if (timeslice_us && timeslice_us <= UINT32_MAX)
		engine_set_timeslice(engine, timeslice_us * 1000);
}

static void lay_out(struct gpusim_node *node)
{
	gpusim_lock(node);
	clock_lay_out(node);
	for (uint32_t card = 0; card < GPUSIM_CARDS; card++) {
		if (node->cards[card].present)
			lay_out_engine((struct engine *)(void *)node->engine_card[card]);
	}
	gpusim_unlock(node);
}

/* A tool that the environment names is opened while the driver starts, as by the real one. */
static void start_tool(void)
{
	const char *path = setting("CUDA_INJECTION64_PATH");
	void *tool = path ? dlopen(path, RTLD_LAZY) : NULL;
	int (*start)(void) = NULL;

	if (tool)
		*(void **)&start = dlsym(tool, "InitializeInjection");
	if (start)
		start();
}

CUresult cuInit(unsigned int flags)
{
	CUresult result = CUDA_SUCCESS;
	bool is_first = false;

	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&lock);
	if (is_forked) {
		result = CUDA_ERROR_NOT_INITIALIZED;
	} else if (!is_initialised) {
		driver.node = gpusim_attach(true);
		if (driver.node) {
			gpusim_wait_while_hanging(driver.node);
			lay_out(driver.node);
			driver_enumerate(&driver);
		}
		driver.cuda_version = version_of(driver.node);
		if (driver.count == 0) {
			result = CUDA_ERROR_NO_DEVICE;
		} else {
			pthread_atfork(NULL, NULL, poison_child);
			is_initialised = is_first = true;
		}
	}
	pthread_mutex_unlock(&lock);
	if (is_first)
		start_tool();
	return result;
}

CUresult cuDriverGetVersion(int *version)
{
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = driver.cuda_version ? driver.cuda_version : version_of(gpusim_attach(false));
	return CUDA_SUCCESS;
}

void driver_lock(void)
{
	pthread_mutex_lock(&lock);
}

void driver_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

static void doze_until(uint64_t virtual_ns)
{
	const uint64_t now_ns = driver_now_ns();

	driver_doze(virtual_ns > now_ns ? virtual_ns - now_ns : 0);
}

CUresult driver_enter_bare(void)
{
	if (driver.node)
		gpusim_wait_while_hanging(driver.node);
	pthread_mutex_lock(&lock);
	while (stalled_until_ns || (is_held && !pthread_equal(holder, pthread_self())))
		doze_until(stalled_until_ns);
	if (is_initialised)
		return CUDA_SUCCESS;
	pthread_mutex_unlock(&lock);
	return CUDA_ERROR_NOT_INITIALIZED;
}

CUresult driver_enter_device(CUdevice ordinal, struct device **device)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	*device = driver_device(ordinal);
	return *device ? result : driver_leave(CUDA_ERROR_INVALID_DEVICE);
}

void driver_at_leave(void (*call)(void))
{
	at_leave = call;
}

CUresult driver_leave(CUresult result)
{
	pthread_mutex_unlock(&lock);
	if (at_leave)
		at_leave();
	return result;
}

void driver_doze(uint64_t virtual_ns)
{
	pthread_mutex_unlock(&lock);
	clock_doze(driver.node, virtual_ns);
	pthread_mutex_lock(&lock);
}

/* Not with the lock: where time goes in steps, who waits for a lock would count as at work. */
void driver_stall(uint64_t virtual_ns)
{
	stalled_until_ns = driver_now_ns() + virtual_ns;
	while (driver_now_ns() < stalled_until_ns)
		doze_until(stalled_until_ns);
	stalled_until_ns = 0;
}

void driver_hold(void)
{
	is_held = gpusim_cost(COST_QUEUE_LOCKS, NULL);
	holder = pthread_self();
}

void driver_release(void)
{
	is_held = false;
}

uint64_t driver_now_ns(void)
{
	return clock_now_ns(driver.node);
}

struct device *driver_device(CUdevice ordinal)
{
	return ordinal >= 0 && ordinal < driver.count ? &driver.devices[ordinal] : NULL;
}

const struct gpusim_card *device_card(const struct device *device)
{
	return &driver.node->cards[device->card];
}

const struct gpusim_instance *device_instance(const struct device *device)
{
	if (device->instance == GPUSIM_NO_INSTANCE)
		return NULL;
	return &device_card(device)->instances[device->instance];
}

uint64_t device_total_bytes(const struct device *device)
{
	const struct gpusim_instance *instance = device_instance(device);

	if (instance)
		return instance->memory_bytes;
	return device_card(device)->memory_total_bytes;
}
