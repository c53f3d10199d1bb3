/*
 * An application that uses include/avfs/avfs.h on a mounted volume, one check after the other.
 * usage: application PLAYED LATE IDLE DIRECTORY CONTROL
 * PLAYED, LATE: files of 32 MiB of which nothing is cached and no policy speaks; IDLE: one whose policy says idle; CONTROL:
 * where "modelled" makes every request to the device take 0.3 s, and "fast" none.
 */
#define _GNU_SOURCE
#include <avfs/avfs.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/xattr.h>
#include <unistd.h>

#define CHECK(condition)                                                               \
	do {                                                                           \
		errno = 0;                                                             \
		if (!(condition)) {                                                    \
			printf("line %d: %s: errno %d\n", __LINE__, #condition, errno); \
			exit(1);                                                       \
		}                                                                      \
	} while (0)

#define FAILS(call, wanted) CHECK((call) == -1 && errno == (wanted))

static char room[1 << 20];

static struct avfs_stream stream(__u64 bits_per_second, __u64 period_us)
{
	struct avfs_stream asked = { .version = AVFS_INTERFACE_VERSION };
	asked.bits_per_second = bits_per_second;
	asked.period_us = period_us;
	return asked;
}

static struct avfs_status status(int file)
{
	struct avfs_status found;
	memset(&found, 0xff, sizeof found);
	CHECK(ioctl(file, AVFS_IOC_STATUS, &found) == 0);
	CHECK(found.version == AVFS_INTERFACE_VERSION);
	CHECK(found.reserved[0] == 0 && found.reserved[1] == 0 && found.reserved[2] == 0);
	return found;
}

static void declares_and_is_admitted(const char *path)
{
	int file = open(path, O_RDONLY), other = open(path, O_RDONLY);
	struct avfs_stream asked = stream(100000000, 200000);
	struct avfs_deadline deadline = { .version = AVFS_INTERFACE_VERSION, .within_us = 5000000 };
	struct avfs_status found;

	CHECK(file >= 0 && other >= 0);
	CHECK(status(file).state == AVFS_STATE_NONE);
	CHECK(ioctl(file, AVFS_IOC_DECLARE, &asked) == 0);
	CHECK(asked.state == AVFS_STATE_ADMITTED && asked.lack == AVFS_LACK_NOTHING);
	CHECK(asked.reserved_bits_per_second == 100000000);
	/* The answer can be asked again. */
	CHECK(ioctl(file, AVFS_IOC_DECLARE, &asked) == 0 && asked.state == AVFS_STATE_ADMITTED);
	asked = stream(50000000, 0);
	CHECK(ioctl(other, AVFS_IOC_DECLARE, &asked) == 0 && asked.reserved_bits_per_second == 150000000);
	CHECK(status(file).reserved_bits_per_second == 150000000);

	CHECK((status(file).flags & AVFS_STATUS_HAS_SLACK) == 0);
	CHECK(ioctl(file, AVFS_IOC_DEADLINE, &deadline) == 0);
	/* One request, and not where anything is read ahead. */
	CHECK(pread(file, room, 65536, 20 << 20) == 65536);
	found = status(file);
	CHECK(found.completed >= 1 && (found.flags & AVFS_STATUS_HAS_SLACK));
	/* Much of the five seconds is left; of the period of the stream it would be a fifth of a second. */
	CHECK(found.slack_us > 4000000 && found.slack_us <= 5000000);
	CHECK(found.missed == 0 && found.tardiness_us == 0);
	/* One that nobody could keep any more gives way to the promise, and is no miss. */
	deadline.within_us = 1000;
	CHECK(ioctl(file, AVFS_IOC_DEADLINE, &deadline) == 0);
	CHECK(usleep(20000) == 0);
	CHECK(pread(file, room, 65536, 26 << 20) == 65536);
	found = status(file);
	CHECK(found.missed == 0 && found.slack_us > 0 && found.slack_us <= 200000);

	/* Everything taken back. */
	asked = stream(0, 0);
	CHECK(ioctl(other, AVFS_IOC_DECLARE, &asked) == 0 && asked.reserved_bits_per_second == 100000000);
	CHECK(ioctl(file, AVFS_IOC_DECLARE, &asked) == 0 && asked.state == AVFS_STATE_NONE);
	CHECK(status(file).state == AVFS_STATE_NONE && status(file).completed == 0);

	/* More than any device carries is served all the same, and told why it is not promised. */
	asked = stream(1000000000000, 0);
	CHECK(ioctl(file, AVFS_IOC_DECLARE, &asked) == 0);
	CHECK(asked.state == AVFS_STATE_WAITING && asked.lack != AVFS_LACK_NOTHING);
	CHECK(asked.reserved_bits_per_second == 0);
	CHECK(pread(file, room, sizeof room, 16 << 20) == sizeof room);
	/* The declaration ends with the file. */
	close(file);
	file = open(path, O_WRONLY);
	CHECK(status(other).state == AVFS_STATE_NONE && status(file).state == AVFS_STATE_NONE);
	asked = stream(1000, 0);
	CHECK(ioctl(file, AVFS_IOC_DECLARE, &asked) == 0 && asked.state == AVFS_STATE_ADMITTED);
	CHECK(status(other).state == AVFS_STATE_NONE);
	close(file);
	close(other);
}

static void device_is(const char *control, const char *mode)
{
	int file = open(control, O_WRONLY);

	CHECK(file >= 0 && write(file, mode, strlen(mode)) == (ssize_t)strlen(mode));
	CHECK(close(file) == 0);
}

/* Nobody could foresee that the device takes longer than the period. */
static void a_miss_is_counted(const char *path, const char *control)
{
	int file = open(path, O_RDONLY);
	struct avfs_stream asked = stream(100000000, 200000);
	struct avfs_status found;

	CHECK(file >= 0);
	CHECK(ioctl(file, AVFS_IOC_DECLARE, &asked) == 0 && asked.state == AVFS_STATE_ADMITTED);
	CHECK(status(file).missed == 0);
	device_is(control, "modelled");
	CHECK(pread(file, room, 65536, 20 << 20) == 65536);
	found = status(file);
	device_is(control, "fast");
	CHECK(found.missed == 1 && found.completed >= 1);
	CHECK(found.tardiness_us > 0 && found.tardiness_us < 5000000);
	CHECK(found.slack_us == -(__s64)found.tardiness_us);
	close(file);
}

static void mistakes_are_refused(const char *path, const char *idle, const char *directory)
{
	int file = open(path, O_RDONLY), writer = open(path, O_WRONLY);
	int gives_way = open(idle, O_RDONLY), listing = open(directory, O_RDONLY | O_DIRECTORY);
	static const struct { __u64 bits_per_second, period_us; } ranges[] = {
		{ 999, 0 }, { 1000000000001, 0 }, { 0, 999 }, { 0, 60000001 }, { 1000, ~0ull }, { ~0ull, 0 },
	};
	struct avfs_stream asked;
	struct avfs_deadline deadline = { .version = AVFS_INTERFACE_VERSION, .within_us = 1000 };
	size_t i;

	for (i = 0; i < sizeof ranges / sizeof *ranges; i++) {
		asked = stream(ranges[i].bits_per_second, ranges[i].period_us);
		FAILS(ioctl(file, AVFS_IOC_DECLARE, &asked), EINVAL);
	}
	asked = stream(1000, 0), asked.version = 2;
	FAILS(ioctl(file, AVFS_IOC_DECLARE, &asked), EINVAL);
	asked = stream(1000, 0), asked.flags = 1;
	FAILS(ioctl(file, AVFS_IOC_DECLARE, &asked), EINVAL);
	asked = stream(1000, 0), asked.reserved[1] = 1;
	FAILS(ioctl(file, AVFS_IOC_DECLARE, &asked), EINVAL);
	asked = stream(1000, 0);
	FAILS(ioctl(gives_way, AVFS_IOC_DECLARE, &asked), EPERM);
	FAILS(ioctl(listing, AVFS_IOC_DECLARE, &asked), ENOTTY);
	CHECK(status(file).state == AVFS_STATE_NONE && status(gives_way).state == AVFS_STATE_NONE);

	CHECK(ioctl(file, AVFS_IOC_DEADLINE, &deadline) == 0);
	FAILS(ioctl(writer, AVFS_IOC_DEADLINE, &deadline), EBADF);
	FAILS(ioctl(gives_way, AVFS_IOC_DEADLINE, &deadline), EPERM);
	deadline.within_us = 999;
	FAILS(ioctl(file, AVFS_IOC_DEADLINE, &deadline), EINVAL);
	deadline.within_us = 60000000;
	CHECK(ioctl(file, AVFS_IOC_DEADLINE, &deadline) == 0);
	deadline.within_us++;
	FAILS(ioctl(file, AVFS_IOC_DEADLINE, &deadline), EINVAL);
	deadline.within_us = 1000, deadline.reserved[0] = 1;
	FAILS(ioctl(file, AVFS_IOC_DEADLINE, &deadline), EINVAL);

	FAILS(ioctl(file, _IO(0xAF, 0x41), 0), ENOTTY);
	FAILS(ioctl(file, _IOWR(0xAF, 0x41, __u64), &asked), ENOTTY);
	FAILS(ioctl(file, _IOR(0xAF, 0x44, struct avfs_status), &asked), ENOTTY);
	FAILS(ioctl(file, AVFS_IOC_DECLARE, (void *)8), EFAULT);
	close(file), close(writer), close(gives_way), close(listing);
}

static void attributes_are_policies(const char *path)
{
	static const char *const names[] = {
		AVFS_XATTR_CLASS, AVFS_XATTR_BITRATE, AVFS_XATTR_DEADLINE_WINDOW,
		AVFS_XATTR_PREFETCH_DEPTH, AVFS_XATTR_WHEN_FULL, AVFS_XATTR_ALLOCATION_WINDOW,
	};
	static const char *const values[] = { "real-time", "80 Mbit/s", "500 ms", "32 MiB", "demote", "64 MiB" };
	static char buffer[4096];
	size_t i, count = sizeof names / sizeof *names;
	struct avfs_stream asked = stream(0, 2000000), hurried = stream(0, 1000);
	int file;

	for (i = 0; i < count; i++)
		CHECK(setxattr(path, names[i], values[i], strlen(values[i]), 0) == 0);
	/* The rate is said in one way: the last. */
	CHECK(setxattr(path, AVFS_XATTR_FRAMES_PER_SECOND, "24", 2, 0) == 0);
	FAILS(getxattr(path, AVFS_XATTR_BITRATE, buffer, sizeof buffer), ENODATA);
	CHECK(setxattr(path, AVFS_XATTR_BITRATE, "80 Mbit/s", 9, 0) == 0);
	FAILS(getxattr(path, AVFS_XATTR_FRAMES_PER_SECOND, buffer, sizeof buffer), ENODATA);
	file = open(path, O_RDONLY);
	/* Who reads on plays. */
	for (i = 0; i < 3; i++)
		CHECK(pread(file, buffer, sizeof buffer, (off_t)(i * sizeof buffer)) == sizeof buffer);
	CHECK(status(file).state == AVFS_STATE_ADMITTED && status(file).reserved_bits_per_second == 80000000);
	/* Another period, and the policy's rate. */
	CHECK(ioctl(file, AVFS_IOC_DECLARE, &asked) == 0 && asked.reserved_bits_per_second == 80000000);
	/* Shorter than any device takes for one of its requests. */
	CHECK(ioctl(file, AVFS_IOC_DECLARE, &hurried) == 0);
	CHECK(hurried.state == AVFS_STATE_WAITING && hurried.lack == AVFS_LACK_DEADLINE);
	for (i = 0; i < count; i++)
		CHECK(removexattr(path, names[i]) == 0);
	close(file);
}

int main(int count, char **arguments)
{
	if (count != 6) {
		fprintf(stderr, "usage: %s PLAYED LATE IDLE DIRECTORY CONTROL\n", arguments[0]);
		return 2;
	}
	declares_and_is_admitted(arguments[1]);
	a_miss_is_counted(arguments[2], arguments[5]);
	mistakes_are_refused(arguments[1], arguments[3], arguments[4]);
	attributes_are_policies(arguments[1]);
	puts("all as the header says");
	return 0;
}
