/* Puts a file together: `probe join PATCH TARGET`, in the folder where the files lie that it takes from.
 *
 * PATCH is lines of text, then bytes that no file there has:
 *
 *   ort-mobile pieces 1
 *   size BYTES                of the whole
 *   copy NAME OFFSET BYTES    the next bytes are those of a file there
 *   data BYTES                the next bytes are the next of those behind the lines
 *   end
 *
 * NAME is 64 hexadecimal digits and perhaps a suffix, so nothing outside the folder can be meant, and no link is
 * followed. TARGET must not exist; it is there only when it is whole and on the disk. The caller holds its digest
 * against what it should be before it gives it its name.
 *
 * Exit codes: 0 joined, 3 the patch or a file is not as it should be, 4 the disk is full or broken; why, on stderr. */
#ifndef PIECES_H
#define PIECES_H

/* Make TARGET as PATCH says; an exit code. */
int join_pieces(const char *patch, const char *target);

#endif
