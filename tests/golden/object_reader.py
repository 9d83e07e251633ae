#!/usr/bin/env python3
"""Reads a volume in a directory of objects, from docs/object-format.md alone.

    object_reader.py DIRECTORY CONTENTS

prints `volume BYTES`, and for each block that is not zeros

    block NUMBER

for each window that a log made

    mark LOG SEGMENT CHUNK CRC TIME MIXTURE

for each range of lost blocks

    lost FIRST COUNT

for a checkpoint, if the store has one, which it compares with the chain

    checkpoint SLOT

and writes these blocks, in order, to the file CONTENTS. `skipped` behind a number: no `zstd`
program is here to decode it, and zeros are written.
"""

import struct
import sys
from pathlib import Path

from reader import crc32c, le, lz4, need, zstd

BLOCK = 4096
WIDTH = 16
HEAD, ENTRY = 80, 16
RAW, LZ4, ZSTD, FILL, MARK, LOST, ZEROS = 0, 1, 2, 3, 252, 253, 255


def check(seed, number, data):
    return crc32c(seed + struct.pack("<Q", number) + data)


class Object:
    """A fence or a part in a slot of a volume, or a piece of a checkpoint of that slot."""

    def __init__(self, data, volume, slot, units=None):
        head = data[:HEAD]
        need(head[:8] == b"ztierOBJ" and le(head, 8, 2) in (1, 2, 3), f"slot {slot} has no object")
        self.slot, self.session = slot, head[32:48]
        self.seed = head[16:48] + struct.pack("<Q", slot)
        need(head[16:32] == volume and le(head, 48, 8) == slot, f"slot {slot} has another's object")
        self.check = le(head, 76, 4)
        need(self.check == check(self.seed, 2**64 - 2, head[:76]), f"the head of {slot} is damaged")
        self.is_fence = head[10] == 2
        self.commits = head[11] & 1 == 1
        self.window, self.part = divmod(le(head, 56, 8), 65536)
        self.before = le(head, 72, 4)
        if self.is_fence:
            return
        kind = 1 if units is None else 4
        need(head[10] == kind and le(head, 64, 4) == len(data), f"slot {slot} is no part")
        end = HEAD + le(head, 12, 4) * ENTRY
        table = data[HEAD:end]
        need(le(head, 68, 4) == check(self.seed, 2**64 - 1, table), f"entries of {slot} are damaged")
        if units is not None:
            need(end == len(data), "a piece has something behind its units")
            units.extend(struct.iter_unpack("<QQ", table))
            return
        self.entries = []
        for at in range(0, len(table), ENTRY):
            block, length, coding, word = struct.unpack("<QHBxI", table[at:at + ENTRY])
            self.entries.append((block, coding, word, data[end:end + length], end))
            end += length
        need(end == len(data), f"payloads of {slot} are damaged")

    def apply(self, blocks):
        for block, coding, word, payload, _ in self.entries:
            if coding == MARK:
                need(check(self.seed, 2**64 - 3, payload) == word, "a mark is damaged")
                print("mark", payload[:16].hex(), *struct.unpack("<5Q", payload[16:]))
                continue
            if coding in (ZEROS, LOST):
                for number in [n for n in blocks if block <= n < block + word]:
                    del blocks[number]
                if coding == LOST:
                    print("lost", block, word)
                continue
            need(check(self.seed, block * 256 + coding, payload) == word, f"block {block} is damaged")
            blocks[block] = decode(coding, payload)

    def place(self, places):
        """Notes in which slot, and where there, each block is."""
        for block, coding, word, payload, at in self.entries:
            if coding in (ZEROS, LOST):
                for number in [n for n in places if block <= n < block + word]:
                    del places[number]
                if coding == LOST:
                    places.update({n: "lost" for n in range(block, block + word)})
            elif coding != MARK:
                places[block] = (self.slot << 24 | at, word, len(payload), coding)


def decode(coding, payload):
    if coding == RAW:
        return payload
    if coding == LZ4:
        return lz4(payload)
    if coding == FILL:
        return payload * (BLOCK // 8)
    need(coding == ZSTD, f"there is no coding {coding}")
    return zstd(payload)


def root(data):
    need(len(data) == 512 and data[:8] == b"ztierOBJ" and data[10] == 3, "there is no root")
    need(le(data, 508, 4) == crc32c(data[:508]), "the root is damaged")
    need(le(data, 12, 4) == WIDTH, "the root has another width")
    generation, slot, session, pieces, last = struct.unpack("<QQ16sII", data[384:424])
    checkpoint = (generation, slot, session, pieces, last) if pieces else None
    return data[16:32], le(data, 48, 8), checkpoint


def restored(index, volume, checkpoint):
    """Where a checkpoint has the blocks, the bytes of all payloads, the sessions, and the end of
    the newest window."""
    generation, slot, session, pieces, last = checkpoint
    units, before = [], 0
    for number in range(pieces):
        data = (index / f"{generation:016x}.{number:04x}").read_bytes()
        piece = Object(data, volume, slot, units)
        place = (piece.session, piece.window, piece.part, piece.before, piece.commits)
        need(place == (session, generation, number, before, number == pieces - 1), "another piece")
        before = piece.check
    need(before == last, "the last piece is another")
    places, sessions, stored, end = {}, [], None, None
    units = iter(units)
    for first, word in units:
        kind, first = first >> 56, first & (1 << 56) - 1
        need(1 <= kind <= 5, f"there is no unit {kind}")
        if kind == 1:
            for bit in (bit for bit in range(64) if word >> bit & 1):
                at, more = next(units)
                place = (at, more & 0xffffffff, more >> 32 & 0xffff, more >> 48)
                places[first * 64 + bit] = place
        elif kind == 2:
            places.update({n: "lost" for n in range(first, first + word)})
        elif kind == 3:
            sessions.append((first, struct.pack("<QQ", *next(units))))
        elif kind == 4:
            session = struct.pack("<QQ", *next(units))
            end = (first, word & 0xffffffff, session, word >> 32, next(units))
        else:
            stored = word
    return places, stored, sessions, end


def compare(directory, volume, checkpoint, found):
    """The checkpoint, and the windows behind it, must make what all windows make."""
    whole, stored, last = {}, 0, None
    places, *rest = restored(directory / "index", volume, checkpoint)
    slot = checkpoint[1]
    for parts in found:
        end = parts[-1]
        need(end.slot < slot or parts[0].slot >= slot, "the checkpoint divides a window")
        for part in parts:
            part.place(whole)
            if end.slot >= slot:
                part.place(places)
        if end.slot < slot:
            stored += sum(len(payload) for part in parts
                          for _, coding, _, payload, _ in part.entries if coding != MARK)
            marks = [(word, (at, at + len(payload)))
                     for _, coding, word, payload, at in end.entries if coding == MARK]
            last = (end.slot, end.check, end.session, *(marks or [(0, (0, 0))])[0])
    need(places == whole, "the checkpoint has other blocks")
    need(rest[0] == stored and rest[2] == last, "the checkpoint has another newest window")
    for part in (part for parts in found for part in parts if part.slot < slot):
        session = [session for slot, session in rest[1] if slot <= part.slot][-1]
        need(session == part.session, f"the checkpoint has another session for slot {part.slot}")
    print("checkpoint", slot)


def windows(chain, volume):
    """The windows that count, as lists of parts."""
    slot, session, parts = 0, None, []
    while (path := chain / f"{slot:016x}").exists():
        found = Object(path.read_bytes(), volume, slot)
        if found.is_fence:
            slot, session = slot + WIDTH, found.session
            continue
        need(found.session == session, f"slot {slot} is of a session that has ended")
        follows = parts and (parts[-1].session, parts[-1].window, parts[-1].part + 1,
                             parts[-1].check) == (session, found.window, found.part, found.before)
        if not follows:
            parts = []
        if follows or found.part == 0:
            parts.append(found)
        if parts and found.commits:
            yield parts
            parts = []
        slot += 1


def main():
    directory = Path(sys.argv[1])
    volume, size, checkpoint = root((directory / "root").read_bytes())
    blocks, found = {}, list(windows(directory / "chain", volume))
    for part in (part for parts in found for part in parts):
        part.apply(blocks)
    if checkpoint:
        compare(directory, volume, checkpoint, found)
    print("volume", size)
    with open(sys.argv[2], "wb") as contents:
        for number, data in sorted(blocks.items()):
            if data == bytes(BLOCK):
                continue
            need(data is None or len(data) == BLOCK, f"block {number} is not whole")
            print("block", number, *(["skipped"] if data is None else []))
            contents.write(data or bytes(BLOCK))


if __name__ == "__main__":
    main()
