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
 */
#ifndef TURNS_H
#define TURNS_H

/* Exit codes: 0 all turns have ended, 2 the folder cannot be used, 3 another runner is at work there. */
int run_turns(const char *folder, const char *seconds);

#endif
