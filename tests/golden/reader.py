#!/usr/bin/env python3
"""Reads the image of a durable log, by what docs/format.md says and nothing else.

    reader.py [--all] [--no-checkpoint] [--contents FILE] IMAGE

For each block that the log holds, and for each range of blocks that it zeroed or lost, this prints

    block NUMBER KIND SHA256    KIND: raw, lz4, zstd, same, cluster; `-copy` behind it: a copy
    range FIRST BLOCKS KIND     KIND: zeros, lost

and on standard error what it has read. `skipped` in place of a sum: no `zstd` program is here to
decode the block. Damage is refused with one line and exit status 1.

By default it reads what the backing store lacks: from what is written on, without copies. With
`--all` it begins at the tail and takes copies, which is right only for a backing store that was
not used since. `--no-checkpoint` replays every chunk instead. `--contents` also writes the blocks
to a file, in the order of the lines.
"""

import argparse
import hashlib
import shutil
import struct
import subprocess
import sys

BLOCK = 4096
RAW, LZ4, ZSTD, SAME, ZEROS, LOST, SUMMARY, CLUSTER = range(1, 9)
NAMES = {RAW: "raw", LZ4: "lz4", ZSTD: "zstd", SAME: "same", CLUSTER: "cluster",
         ZEROS: "zeros", LOST: "lost"}
U64 = (1 << 64) - 1
AREAS_AT = 128 << 10


class Damage(Exception):
    """What is wrong with the image, in one line."""


def need(right, what):
    if not right:
        raise Damage(what)


def le(data, at, size):
    return int.from_bytes(data[at:at + size], "little")


# Check words.

def crc_table():
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        yield byte


TABLE = tuple(crc_table())


def crc32c(data, crc=0):
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def mix(a, b):
    """Two numbers of 64 bits, spread over 32 bits."""
    z = a * 0x9E3779B97F4A7C15 & U64 ^ rotate(b, 32)
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & U64
    z = (z ^ z >> 27) * 0x94D049BB133111EB & U64
    z ^= z >> 31
    return (z ^ z >> 32) & 0xFFFFFFFF


def rotate(number, bits):
    """A number of 64 bits, rotated to the left."""
    return (number << bits | number >> 64 - bits) & U64


# Payloads.

def lz4(data):
    """One LZ4 block."""
    out, at = bytearray(), 0

    def longer(length):
        nonlocal at
        if length == 15:
            while True:
                at += 1
                length += data[at - 1]
                if data[at - 1] != 255:
                    break
        return length

    while at < len(data):
        token, at = data[at], at + 1
        literals = longer(token >> 4)
        out += data[at:at + literals]
        at += literals
        if at >= len(data):
            break
        back, at = le(data, at, 2), at + 2
        need(0 < back <= len(out), "an LZ4 block refers to what is before its begin")
        for _ in range(longer(token & 15) + 4):
            out.append(out[-back])
    return bytes(out)


def zstd(frame):
    """One frame that lacks its magic number; None if there is no program that decodes it."""
    if not shutil.which("zstd"):
        return None
    done = subprocess.run(["zstd", "-dcq"], input=b"\x28\xb5\x2f\xfd" + frame,
                          capture_output=True, check=False)
    need(done.returncode == 0, "a frame of zstd does not decode")
    return done.stdout


def decode(kind, block, payload):
    """The content of a block; None if it cannot be decoded here."""
    if kind == RAW:
        data = payload
    elif kind == LZ4:
        data = lz4(payload)
    elif kind == SAME:
        need(len(payload) == 8, f"block {block}: a repeated word is not 8 bytes")
        data = payload * (BLOCK // 8)
    elif kind == ZSTD:
        data = zstd(payload)
    else:
        pad = payload[-1]
        need(1 <= pad <= 16 and not any(payload[-pad:-1]), f"block {block}: bad padding")
        data = zstd(payload[:-pad])
        if data is not None:
            need(len(data) == 4 * BLOCK, f"block {block}: a cluster is not four blocks")
            data = data[block % 4 * BLOCK:][:BLOCK]
    need(data is None or len(data) == BLOCK, f"block {block}: its payload is not a block")
    return data


# Superblock.

class Superblock:
    """One of the two copies."""

    def __init__(self, data):
        need(data[:8] == b"ztierLOG", "no superblock of a log")
        need(le(data, 4092, 4) == crc32c(data[:4092]), "the CRC of a superblock is wrong")
        self.version = le(data, 8, 4)
        self.segment_bytes = le(data, 12, 4)
        (self.generation, self.segments, self.slots_at, self.blocks) = \
            struct.unpack_from("<4Q", data, 32)
        self.in_use, epochs = struct.unpack_from("<2I", data, 64)
        self.written = struct.unpack_from("<QQI", data, 72)
        self.durable, = struct.unpack_from("<Q", data, 96)
        lost, = struct.unpack_from("<I", data, 124)
        self.tail = struct.unpack_from("<QQI", data, 160)
        self.copies_from, = struct.unpack_from("<Q", data, 184)
        need(epochs <= 200 and lost <= 100, "a superblock with too many epochs or lost ranges")
        names = struct.iter_unpack("<QQ", data[256:256 + 16 * (epochs + lost)])
        names = list(names)
        self.epochs, self.lost = names[:epochs], names[epochs:]
        self.checkpoint = None
        if le(data, 192, 8):
            self.checkpoint = struct.unpack_from("<QIIIIQQIIQI", data, 192)

    def epoch_of(self, chunk):
        """The epoch of a chunk's number."""
        known = [epoch for first, epoch in self.epochs if first <= chunk]
        return known[-1] if known else None


def superblock(image):
    """The newest of the two that is whole, and a note if the other one is not."""
    found, wrong = [], []
    for name, at in ("A", 0), ("B", 64 << 10):
        try:
            found.append(Superblock(image[at:at + 4096]))
        except Damage as damage:
            wrong.append(f"superblock {name}: {damage}")
    need(found, "; ".join(wrong))
    for one in found:
        need(one.version == 3, f"version {one.version} of the log, not 3")
    return max(found, key=lambda one: one.generation), wrong


# Chunks.

class Entry:
    """One of a chunk's table, or of a checkpoint."""

    def __init__(self, low, high):
        self.copy, self.length = low >> 56 & 1, (low >> 44 & 0xFFF) + 1
        self.kind, self.block = low >> 40 & 15, low & (1 << 40) - 1
        need(1 <= self.kind <= 8 and low >> 57 == 0, f"an entry of an unknown kind {self.kind}")
        self.blocks, self.offset, self.check = high, high & 0xFFFFFFFF, high >> 32
        if self.kind == CLUSTER:
            self.length *= 16


class Chunk:
    """A header and its table, both checked."""

    def __init__(self, log, segment, offset):
        start = log.at(segment, offset)
        head = log.image[start:start + 128]
        need(offset % 4096 == 0 and len(head) == 128 and head[:4] == b"zCHK", "no chunk")
        (self.version, self.epoch, self.number, self.segment, self.offset, self.length,
         entries, table_check, self.before) = struct.unpack_from("<IQQQIIIII", head, 4)
        self.durable, = struct.unpack_from("<Q", head, 56)
        own, = struct.unpack_from("<I", head, 124)
        need(own == crc32c(head[:124]) ^ mix(self.epoch, self.number), "a header's CRC is wrong")
        need(self.version == 1, f"version {self.version} of a chunk, not 1")
        need((self.segment, self.offset) == (segment, offset), "a chunk of another place")
        table_at = offset + self.length - 16 * entries
        need(self.length % 4096 == 0 and table_at >= offset + 128
             and offset + self.length <= log.super.segment_bytes, "a chunk that is too long")
        self.check = own
        self.table = bytes(log.image[log.at(segment, table_at):][:16 * entries])
        need(table_check == crc32c(self.table) ^ mix(self.epoch ^ 1, self.number),
             f"chunk {self.number}: the CRC of its entries is wrong")
        self.entries = [Entry(*words) for words in struct.iter_unpack("<QQ", self.table)]


class Log:
    """A log: the way along its chunks, and what they say."""

    def __init__(self, image, notes=()):
        self.image = image
        self.super, note = superblock(image)
        end = self.super.slots_at + self.super.segments * self.super.segment_bytes
        need(end <= len(image), f"the log takes {end} bytes, and {len(image)} are there")
        self.epochs = {}  # of segments
        self.held = {}  # block: (kind, segment, offset, length, check, copy)
        self.ranges = []  # (first, blocks, kind): blocks that are zeros or lost
        self.notes = [*notes] or note

    def at(self, segment, offset):
        """Where in the image that is."""
        slot = segment % self.super.segments
        return self.super.slots_at + slot * self.super.segment_bytes + offset

    def payload(self, epoch, entry_block, segment, offset, length, check):
        """A payload whose check word is right."""
        need(offset + length <= self.super.segment_bytes, "a payload that leaves its segment")
        begin = self.at(segment, offset)
        data = bytes(self.image[begin:begin + length])
        mixed = mix(epoch ^ rotate(entry_block, 20), segment << 24 ^ offset)
        if crc32c(data) ^ mixed != check:
            raise Damage(f"block {entry_block}: the check word of its payload is wrong "
                         f"(segment {segment}, byte {offset})")
        return data

    # The chain.

    def is_end(self, number):
        """Whether the log was closed before a chunk of this number."""
        return not self.super.in_use and number == self.super.durable

    def follows(self, chunk):
        """Whether a chunk is of the epoch that the superblock names for its number."""
        return self.super.epoch_of(chunk.number) in (None, chunk.epoch)

    def find(self, number, before, places):
        """The chunk of this number at one of the places; None: none of them has it."""
        if self.is_end(number):
            return None
        wrong = None
        for segment, offset in places:
            try:
                chunk = Chunk(self, segment, offset)
            except Damage as damage:
                wrong = wrong or damage
                continue
            if (chunk.number, chunk.before) == (number, before) and self.follows(chunk):
                return chunk
        self.notes.append(f"chunk {number} is not there: {wrong or 'another one is'}")
        return None

    def places(self, segment, offset):
        """Where the chunk may be that is expected there, or first in one of the next segments."""
        if offset < self.super.segment_bytes:
            yield segment, offset
        ahead = max(64, (512 << 20) // self.super.segment_bytes)
        for ahead in range(1, min(ahead, self.super.segments) + 1):
            yield segment + ahead, 0

    def chain(self, segment, number, before, offset=0):
        """The chunks from this one on."""
        chunks, durable = [], self.super.durable
        while chunk := self.find(number, before, self.places(segment, offset)):
            chunks.append(chunk)
            durable = max(durable, chunk.durable)
            segment, offset = chunk.segment, chunk.offset + chunk.length
            number, before = chunk.number + 1, chunk.check
        if not self.is_end(number):
            durable = max(durable, self.later(segment, number))
        need(number >= durable, f"chunk {number} is damaged: all below {durable} were durable")
        for index, chunk in enumerate(chunks):
            if chunk.number >= durable and not self.whole(chunk):
                self.notes.append(f"chunk {chunk.number} is torn: the log ends before it")
                return chunks[:index]
        return chunks

    def later(self, segment, number):
        """What a later chunk of the same log says is durable, if there is one."""
        durable = 0
        for where, _ in self.places(segment, 0):
            for offset in range(0, self.super.segment_bytes, 4096):
                try:
                    chunk = Chunk(self, where, offset)
                except Damage:
                    continue
                if chunk.number > number and chunk.epoch == self.super.epoch_of(chunk.number):
                    durable = max(durable, chunk.durable)
        return durable

    def whole(self, chunk):
        """Whether all payloads of a chunk are there."""
        try:
            for entry in chunk.entries:
                if entry.kind not in (ZEROS, LOST):
                    self.payload(chunk.epoch, entry.block, chunk.segment, entry.offset,
                                 entry.length, entry.check)
        except Damage:
            return False
        return True

    # What is held.

    def put(self, block, what):
        """A block has a record."""
        need(block < self.super.blocks, f"block {block} is beyond the volume")
        self.cut_ranges(block, 1)
        self.held[block] = what

    def put_range(self, first, blocks, kind):
        """Blocks are zeros, or lost."""
        need(first + blocks <= self.super.blocks, f"a range from block {first} leaves the volume")
        self.cut_ranges(first, blocks)
        self.ranges.append((first, blocks, kind))
        for block in [block for block in self.held if first <= block < first + blocks]:
            del self.held[block]

    def cut_ranges(self, first, blocks):
        """No range is known of these blocks any more."""
        end, rest = first + blocks, []
        for begin, count, kind in self.ranges:
            parts = (begin, min(begin + count, first)), (max(begin, end), begin + count)
            rest += [(a, b - a, kind) for a, b in parts if a < b]
        self.ranges = rest

    def replay(self, chunk, copies):
        """Takes the changes of a chunk over."""
        known = self.epochs.setdefault(chunk.segment, chunk.epoch)
        need(known == chunk.epoch, f"segment {chunk.segment} has chunks of two epochs")
        for entry in chunk.entries:
            if entry.kind in (ZEROS, LOST):
                self.put_range(entry.block, entry.blocks, entry.kind)
            elif entry.kind != SUMMARY and (copies or not entry.copy):
                self.put(entry.block, (entry.kind, chunk.segment, entry.offset, entry.length,
                                       entry.check, entry.copy))

    # Summaries.

    def check_summary(self, chunk, chunks):
        """Whether the summary in a chunk says what the chunks of the segment before it say."""
        pieces = sorted((e for e in chunk.entries if e.kind == SUMMARY), key=lambda e: e.block)
        if not pieces:
            return 0
        data = b"".join(self.payload(chunk.epoch, e.block, chunk.segment, e.offset, e.length,
                                     e.check) for e in pieces)
        segment, epoch, first, before, count = struct.unpack_from("<QQQII", data)
        of = [one for one in chunks if one.segment == segment]
        if not of or of[0].number != first:
            return 0  # Its first chunks are before the begin.
        places = [struct.unpack_from("<III", data, 40 + 12 * index) for index in range(count)]
        same = epoch == of[0].epoch and before == of[0].before and data[32:40] == bytes(8) \
            and places == [(one.offset, one.length, len(one.entries)) for one in of] \
            and data[40 + 12 * count:] == b"".join(one.table for one in of)
        need(same, f"the summary of segment {segment} is not what its chunks say")
        return 1

    # The checkpoint.

    def pages(self):
        """The pages of the checkpoint: (what, first, oldest, items), checked."""
        seed, area, size, count, *_, whole_sum = self.super.checkpoint
        half = (self.super.slots_at - AREAS_AT) // 2 // 4096 * 4096
        need(area in (0, 1) and size * count <= half, "the checkpoint is longer than its area")
        total = 0
        for index in range(count):
            at = AREAS_AT + area * half + index * size
            page = self.image[at:at + size]
            check, own, number, what, items, oldest, first = struct.unpack_from("<IQIIIxxxxQQ",
                                                                                page, 4)
            need(page[:4] == b"zCKP" and (own, number) == (seed, index)
                 and check == crc32c(page[8:]) ^ mix(seed, index),
                 f"page {index} of the checkpoint is damaged")
            total = crc32c(struct.pack("<II", total, check))
            bytes_each = 16 if what == 3 else 24
            need(what in (1, 2, 3) and 64 + items * bytes_each <= size, f"page {index} is wrong")
            form = "<QQII" if what == 1 else "<QQQ" if what == 2 else "<QQ"
            yield what, first, oldest, list(
                struct.iter_unpack(form, page[64:64 + items * bytes_each]))
        need(whole_sum in (0, total), "the pages of the checkpoint are of different ones")

    def runs(self):
        """The whole copy and the increments: each its pages of segments, ranges and blocks."""
        runs, last = [], 3
        for what, *page in self.pages():
            if what == 1 and last != 1:
                runs.append({1: [], 2: [], 3: []})
            need(what >= last or (what, last) == (1, 3), "pages in the wrong order")
            runs[-1][what].append(page)
            last = what
        return runs

    def load(self, begin, copies):
        """Takes its pages over, but for what is before this segment. Returns the segments."""
        segments = {}
        for run in self.runs():
            need(all(run.values()), "a run of pages is not complete")
            first = run[1][0][0]
            segments = {number: of for number, of in segments.items() if number < first}
            for first, _, items in run[1]:
                segments.update(zip(range(first, first + len(items)), items))
            ranges = []
            for _, _, items in run[2]:
                for low, blocks, segment in items:
                    ranges.append((low & (1 << 40) - 1, blocks, low >> 40 & 15, segment))
            for first, blocks, kind, segment in ranges:
                if segment >= begin:
                    self.put_range(first, blocks, kind)
            for _, oldest, items in run[3]:
                for low, high in items:
                    self.load_block(low, high, oldest, begin, copies)
        self.epochs = {number: epoch for number, (epoch, *_, used) in segments.items() if used}
        return segments

    def load_block(self, low, high, oldest, begin, copies):
        """Takes one item over."""
        kind, slot, block = (low & 1) << 3 | low >> 1 & 7, low >> 4 & (1 << 22) - 1, low >> 26
        length, offset, check = (high & 0xFFF) + 1, (high >> 12 & 0xFFFFF) * 16, high >> 32
        copy = kind > 8
        kind -= 8 * copy
        need(kind in (RAW, LZ4, ZSTD, SAME, CLUSTER), f"an item of an unknown kind {kind}")
        segment = oldest + (slot - oldest) % self.super.segments
        if segment >= begin and (not copy or copies and segment >= self.super.copies_from):
            length *= 16 if kind == CLUSTER else 1
            self.put(block, (kind, segment, offset, length, check, copy))

    # All of it.

    def read(self, checkpoint, everything):
        """Reads what the log says."""
        begin, number, before = self.super.tail if everything else self.super.written
        start, offset = begin, 0
        for first, blocks in self.super.lost:
            self.put_range(first, blocks, LOST)
        if checkpoint and self.super.checkpoint:
            try:
                start, offset, number, before = self.load_checkpoint(begin, number, everything)
            except Damage as damage:
                self.__init__(self.image, self.notes + [f"the checkpoint is not used: {damage}"])
                return self.read(False, everything)
        chunks = self.chain(start, number, before, offset)
        summaries = sum(self.check_summary(chunk, chunks) for chunk in chunks)
        self.notes.append(f"{len(chunks)} chunks, {summaries} summaries")
        for chunk in chunks:
            self.replay(chunk, everything and chunk.segment >= self.super.copies_from)

    def load_checkpoint(self, begin, number, copies):
        """Takes the checkpoint over. Where the first chunk to replay is: segment, offset, number,
        check word of the header before."""
        _, _, _, pages, before, first, start, offset, *_ = self.super.checkpoint
        need(first >= number and start >= begin, "the log has passed it")
        segments = self.load(begin, copies)
        need(all(segment in segments for segment in range(begin, start)), "it lacks segments")
        self.notes.append(f"{pages} pages, {len(self.held)} blocks in them")
        return start, offset, first, before

    def content(self):
        """Each block that is held: its number, kind, and content."""
        for block, (kind, segment, offset, length, check, copy) in sorted(self.held.items()):
            need(segment in self.epochs, f"block {block}: nothing tells of segment {segment}")
            data = self.payload(self.epochs[segment], block, segment, offset, length, check)
            yield block, NAMES[kind] + ("-copy" if copy else ""), decode(kind, block, data)


def main():
    options = argparse.ArgumentParser(description="Reads the image of a durable log.")
    options.add_argument("--all", action="store_true")
    options.add_argument("--no-checkpoint", action="store_true")
    options.add_argument("--contents")
    options.add_argument("image")
    asked = options.parse_args()
    lines, contents = [], []
    try:
        with open(asked.image, "rb") as file:
            log = Log(memoryview(file.read()))
        log.read(not asked.no_checkpoint, asked.all)
        for block, kind, data in log.content():
            seen = "skipped" if data is None else hashlib.sha256(data).hexdigest()
            lines.append(f"block {block} {kind} {seen}")
            contents.append(data or bytes(BLOCK))
    except (Damage, OSError, struct.error, IndexError) as damage:
        print(f"{asked.image}: {damage}", file=sys.stderr)
        return 1
    lines += [f"range {first} {blocks} {NAMES[kind]}" for first, blocks, kind in sorted(log.ranges)]
    if asked.contents:
        with open(asked.contents, "wb") as file:
            file.write(b"".join(contents))
    for line in lines:
        print(line)
    print("; ".join(log.notes), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
