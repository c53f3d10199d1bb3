/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What an application can say to an AVFS volume of a file that it has open, and ask of it.
 *
 * AVFS plays and records streams: a client that says at which rate it reads or writes holds a reservation of the
 * device's time, and all others give way to it. An administrator says so for files and directories with extended
 * attributes (see below); an application that knows better says it here, for its own open file.
 *
 * All clients that have a file open for reading only are one stream, all that have it open for writing another; the
 * rates of its clients add up. An open is refused for want of room (EBUSY) only where a policy says so (when_full). Any
 * other stream for which there is no room waits, is served as best effort, and is admitted when there is room.
 *
 * All numbers are of this host's byte order, all times are microseconds. The layout is the same for 32-bit programs.
 *
 * errno of the three requests:
 *   EINVAL  unknown version, a flag or a reserved field that is not 0, or a number out of its range
 *   EPERM   an administrator's policy says that the file gives way (class best-effort or idle)
 *   EBADF   a deadline for reads of a file that is not open for reading
 *   ENOTTY  no AVFS volume, no regular file, or an AVFS that does not know the request
 *
 * Policies: getxattr(2), setxattr(2) and removexattr(2) with the names below, on a file or on a directory above it, of
 * which the nearest that says something holds from the next open on. Values are text, as in the configuration; those
 * that cannot be understood, and other names that begin with "user.avfs.", are refused with EINVAL. Bitrate and frames per
 * second take each other's place. See avfsctl(8).
 */
#ifndef AVFS_H
#define AVFS_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define AVFS_INTERFACE_VERSION 1

#define AVFS_XATTR_CLASS             "user.avfs.class"             /* "real-time", "best-effort", "idle" */
#define AVFS_XATTR_BITRATE           "user.avfs.bitrate"           /* "100 Mbit/s" */
#define AVFS_XATTR_FRAMES_PER_SECOND "user.avfs.frames_per_second" /* "23.976"; instead of a bitrate */
#define AVFS_XATTR_DEADLINE_WINDOW   "user.avfs.deadline_window"   /* "500 ms" */
#define AVFS_XATTR_PREFETCH_DEPTH    "user.avfs.prefetch_depth"    /* "32 MiB" */
#define AVFS_XATTR_WHEN_FULL         "user.avfs.when_full"         /* "demote", "refuse" */
#define AVFS_XATTR_ALLOCATION_WINDOW "user.avfs.allocation_window" /* "64 MiB" */

/* How a stream is served. */
enum avfs_state {
	AVFS_STATE_NONE = 0,     /* there is none: no rate is known */
	AVFS_STATE_ADMITTED = 1, /* with deadlines that hold */
	AVFS_STATE_PAUSED = 2,   /* it asks for nothing, and others may have its time meanwhile */
	AVFS_STATE_DEMOTED = 3,  /* as best effort: the device carries less than when it was admitted */
	AVFS_STATE_WAITING = 4,  /* as best effort: there is no room */
};

/* What is lacking for a reservation, or for one of the whole rate. */
enum avfs_lack {
	AVFS_LACK_NOTHING = 0,
	AVFS_LACK_TIME = 1,       /* of the device */
	AVFS_LACK_DEADLINE = 2,   /* when all want their requests at once, one would be late: a longer period may fit;
	                             the volume asks its device for 8 MiB at a time */
	AVFS_LACK_MEMORY = 3,     /* for buffers */
	AVFS_LACK_CONGESTION = 4, /* streams are late already */
	AVFS_LACK_SENSE = 5,      /* it is no stream that could be reserved */
	AVFS_LACK_SHARE = 6,      /* of what this user, or all users together, may reserve: user_share_percent */
};

/*
 * AVFS_IOC_DECLARE: at which rate this client reads the file (or writes it, if it is open for writing), in place of
 * what it declared before and of the file's policy. With both numbers 0 it takes its declaration back. The declaration
 * ends when the file is closed.
 */
struct avfs_stream {
	__u32 version;                  /* in: AVFS_INTERFACE_VERSION */
	__u32 flags;                    /* in: 0 */
	__u64 bits_per_second;          /* in: 1000 to 10^12; 0: as the policy says */
	__u64 period_us;                /* in: so long after it is asked for a request is complete, 1000 to 60000000;
	                                   0: as the policy says */
	__u32 state;                    /* out: enum avfs_state */
	__u32 lack;                     /* out: enum avfs_lack */
	__u64 reserved_bits_per_second; /* out: for all clients of the stream together */
	__u64 fits_bits_per_second;     /* out, if something is lacking: the rate for which there is room; 0: none */
	__u64 reserved[2];              /* in: 0 */
};

/*
 * AVFS_IOC_DEADLINE: the next request to read through this file descriptor is to be complete so long after now. What a
 * read(2) asks for in several requests (at 16 MiB, or where the kernel divides it) has the deadline for the first. Sooner than
 * the period of a stream that is admitted it is complete where that fits beside what others were promised; if it does not
 * fit, the period counts, also for what is missed.
 */
struct avfs_deadline {
	__u32 version;     /* in: AVFS_INTERFACE_VERSION */
	__u32 flags;       /* in: 0 */
	__u64 within_us;   /* in: 1000 to 60000000 */
	__u64 reserved[2]; /* in: 0 */
};

/* AVFS_IOC_STATUS: how the stream is doing that this client is part of. Counters begin with its reservation. */
struct avfs_status {
	__u32 version;                  /* out: AVFS_INTERFACE_VERSION */
	__u32 state;                    /* out: enum avfs_state; without a stream all that follows is 0 */
	__u32 lack;                     /* out: enum avfs_lack */
	__u32 flags;                    /* out: AVFS_STATUS_... */
	__u64 reserved_bits_per_second; /* out: as above */
	__u64 completed;                /* out: requests to the device that were completed */
	__u64 missed;                   /* out: of these, how many after their deadline */
	__u64 tardiness_us;             /* out: by how much the latest of them */
	__s64 slack_us;                 /* out: how long before its deadline the last completed; negative: after it */
	__u64 reserved[3];              /* out: 0 */
};

/* slack_us is known: a request with a deadline has completed. */
#define AVFS_STATUS_HAS_SLACK 1u

#define AVFS_IOC_DECLARE  _IOWR(0xAF, 0x41, struct avfs_stream)
#define AVFS_IOC_DEADLINE _IOW(0xAF, 0x42, struct avfs_deadline)
#define AVFS_IOC_STATUS   _IOR(0xAF, 0x43, struct avfs_status)

#endif
