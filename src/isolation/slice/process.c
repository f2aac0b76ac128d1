/* Identity and liveness, from /proc and from what fork does to memory. */
#include "slice/process.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18 /* Linux 4.14; older kernels refuse it and atfork must do */
#endif

/* PROC_PID_INIT_INO of the kernel: the inode of the first pid namespace. */
#define FIRST_PID_NAMESPACE 0xEFFFFFFCu

struct stat_line {
	char state;
	long threads;
	uint64_t start_ticks;
	uint64_t stack_start;
};

/* Reads /proc/<pid>/stat; false when it cannot be read or understood. No allocation. */
static bool read_stat(const char *path, struct stat_line *line)
{
	char text[1024];
	const int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return false;
	const ssize_t length = read(fd, text, sizeof(text) - 1);

	close(fd);
	if (length <= 0)
		return false;
	text[length] = 0;
	/* The name in brackets may hold anything, brackets too: fields count from the last one. */
	char *field = strrchr(text, ')');

	if (!field || field[1] != ' ')
		return false;
	field += 2;
	*line = (struct stat_line){.state = *field};
	for (int number = 3; *field && number <= 28; number++) {
		if (number == 20)
			line->threads = strtol(field, NULL, 10);
		else if (number == 22)
			line->start_ticks = strtoull(field, NULL, 10);
		else if (number == 28)
			line->stack_start = strtoull(field, NULL, 10);
		field += strcspn(field, " ");
		field += *field == ' ';
	}
	return line->start_ticks != 0;
}

static uint64_t pid_namespace(void)
{
	struct stat status;

	return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

static pthread_mutex_t asking = PTHREAD_MUTEX_INITIALIZER;
static struct process_name self;
static atomic_bool is_known;
static _Atomic(uint32_t) *birth_mark; /* a word that fork wipes; NULL before the first look */
static atomic_bool forked_by_libc;

static void (*_Atomic in_children[16])(void);

static void child_after_fork(void)
{
	asking = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	atomic_store(&is_known, false);
	for (unsigned i = 0; i < sizeof(in_children) / sizeof(in_children[0]); i++) {
		void (*const one)(void) = atomic_load(&in_children[i]);

		if (one)
			one();
	}
	atomic_store(&forked_by_libc, true);
}

/* Threads that come here together ask for it twice, which does no harm. */
static void watch_forks(void)
{
	static atomic_bool is_asked_for;

	if (atomic_load_explicit(&is_asked_for, memory_order_acquire))
		return;
	pthread_atfork(NULL, NULL, child_after_fork);
	atomic_store_explicit(&is_asked_for, true, memory_order_release);
}

void process_in_children(void (*function)(void))
{
	for (unsigned i = 0; i < sizeof(in_children) / sizeof(in_children[0]); i++) {
		void (*found)(void) = NULL;

		if (atomic_compare_exchange_strong(&in_children[i], &found, function) ||
		    found == function)
			break;
	}
	watch_forks();
}

/*
 * The mark notices a raw clone too, which runs no atfork handlers. Called with
 * the lock held; failing leaves the handlers alone to do the work.
 */
static void make_birth_mark(void)
{
	void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (page == MAP_FAILED)
		return;
	if (madvise(page, 4096, MADV_WIPEONFORK) != 0) {
		munmap(page, 4096);
		return;
	}
	atomic_store((_Atomic(uint32_t) *)page, 1);
	birth_mark = page;
}

bool process_was_forked(void)
{
	const bool is_wiped =
		birth_mark && atomic_load_explicit(birth_mark, memory_order_relaxed) == 0;

	if (!is_wiped && !atomic_load_explicit(&forked_by_libc, memory_order_relaxed))
		return false;
	if (is_wiped) {
		atomic_store(birth_mark, 1);
		if (!atomic_load(&forked_by_libc))
			child_after_fork();
	}
	atomic_store(&forked_by_libc, false);
	return true;
}

const struct process_name *process_self(void)
{
	struct stat_line line;

	if (atomic_load_explicit(&is_known, memory_order_acquire))
		return &self;
	watch_forks();
	pthread_mutex_lock(&asking);
	if (!atomic_load(&is_known)) {
		static bool has_mark;

		if (!has_mark)
			make_birth_mark();
		has_mark = true;
		self = (struct process_name){.pid = getpid(), .pid_namespace = pid_namespace()};
		if (read_stat("/proc/self/stat", &line)) {
			self.start_ticks = line.start_ticks;
			self.stack_start = line.stack_start;
		}
		atomic_store_explicit(&is_known, true, memory_order_release);
	}
	pthread_mutex_unlock(&asking);
	return &self;
}

bool process_is_alive(const struct process_name *name)
{
	char path[40];
	struct stat_line line;

	/* Numbers of another pid namespace say nothing here. */
	if (name->pid_namespace != process_self()->pid_namespace)
		return true;
	if (kill(name->pid, 0) != 0 && errno == ESRCH)
		return false;
	(void)snprintf(path, sizeof(path), "/proc/%d/stat", name->pid);
	/* No /proc, or one that hides other users' processes: the signal was the answer. */
	if (!read_stat(path, &line))
		return true;
	if (name->start_ticks && line.start_ticks != name->start_ticks)
		return false;
	/* A main thread that has ended looks like a zombie while others go on. */
	if (line.state == 'X' || (line.state == 'Z' && line.threads <= 1))
		return false;
	/* Without the right to see it, the kernel shows 0 or 1. */
	return !(name->stack_start > 1 && line.stack_start > 1 &&
		 line.stack_start != name->stack_start);
}

bool process_sees_host_pids(void)
{
	return process_self()->pid_namespace == FIRST_PID_NAMESPACE;
}
