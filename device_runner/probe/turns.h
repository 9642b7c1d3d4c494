/* Requests one after the other where nobody asks for them: `probe turns FOLDER SECONDS`.
 *
 * FOLDER/turns names the turns, digits on a line each, and FOLDER/requests/TURN is what a turn asks for. Each runs in a
 * process of its own in FOLDER/session, where these files of it lie then, flat, since who brings them back may drop folders:
 *   TURN.begun          milliseconds since 1970 at which it began, written before anything runs
 *   TURN.before, .after what FOLDER/state.sh prints of the device; while its exit code is 75, the device is not fit and is
 *                       asked again, for at most SECONDS
 *   TURN.answer         the probe's document; TURN.errors has its standard error
 *   TURN.code           its exit code, written last; "lost" where an earlier runner ended before the turn did
 * What has a code is not run again. When the runner is killed, so is what it runs.
 *
 * With PROBE_APP turns run in the process of the app, which may start no other: it asks for as many as it wants to have in
 * one, and writes the state of the device itself.
 */
#ifndef TURNS_H
#define TURNS_H

#include <stdbool.h>
#include <stdint.h>

struct turns_order {
    const char *folder;
    uint64_t wait_seconds;
    uint64_t most;                         /* how many turns to run, those that were lost before not counted */
    bool (*write_state)(const char *file); /* an app's: into the folder of the session; whether the device is fit */
};

/* Exit codes: 0 all turns have ended, or as many as were asked for, 2 the folder cannot be used, 3 another runner is at
 * work there. */
int run_turns(const struct turns_order *order);

/* One request from a file, its answer on stdout; the probe's exit code. */
int run_request(const char *path);

#endif
