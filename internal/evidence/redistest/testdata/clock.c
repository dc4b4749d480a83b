#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset;

__attribute__((constructor)) static void begin(void) {
	const char *name = getenv("LOCKMIGRATE_CLOCK");
	int fd = name ? open(name, O_RDONLY) : -1;
	void *p = fd >= 0 ? mmap(NULL, 8, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
	if (p != MAP_FAILED) offset = p;
}

int clock_gettime(clockid_t id, struct timespec *t) {
	int r = syscall(SYS_clock_gettime, id, t);
	if (r == 0 && offset && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
		int64_t ns = t->tv_nsec + *offset % 1000000000;
		t->tv_sec += *offset / 1000000000;
		if (ns < 0) { ns += 1000000000; t->tv_sec--; }
		if (ns >= 1000000000) { ns -= 1000000000; t->tv_sec++; }
		t->tv_nsec = ns;
	}
	return r;
}

int gettimeofday(struct timeval *restrict v, void *restrict zone) {
	struct timespec t;
	if (clock_gettime(CLOCK_REALTIME, &t) != 0) return -1;
	v->tv_sec = t.tv_sec;
	v->tv_usec = t.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *to) {
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	if (to) *to = t.tv_sec;
	return t.tv_sec;
}
