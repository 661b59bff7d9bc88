# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Records of Kafka's batch format 2 from and to the buffers of Arrow columns.

The broker's Kafka listener calls the two functions of this module once per batch, with bytes from the network or from a
disk: every position is checked before it is read. The module must not know headers of batches, checksums, compression
or Arrow's metadata.

The columns are `key` and `value` (binary), `timestamp` (int64, microseconds), `headers` (list of struct of `key`,
text, and `value`, binary), and for `encode` an optional `offset_delta` (int32). Their 17 or 19 buffers follow one
another in the order of Arrow's specification, each at a multiple of 8 bytes.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AsString, PyByteArray_FromStringAndSize, PyByteArray_Resize
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

cdef enum:
    BUFFERS = 17
    BUFFERS_WITH_DELTAS = 19
    KEY = 0
    VALUE = 3
    TIMES = 7
    HEADERS = 8
    NAME = 11
    HEADER_VALUE = 14
    DELTAS = 18
    # Size of a record without key, value and headers.
    RECORD_BYTES_MIN = 7
    # The interpreter lock is released for larger batches; below, releasing it takes longer than the work.
    LOCKED_BYTES_MAX = 65536

cdef enum Fault:
    NO_FAULT
    TRUNCATED
    BAD_NUMBER
    BAD_LENGTH
    BAD_DELTA
    BAD_SIZE
    LEFT_OVER
    TIME_OVERFLOW
    BAD_BUFFER
    BAD_OFFSETS

cdef dict FAULTS = {
    TRUNCATED: "ends before the record is complete",
    BAD_NUMBER: "has a number of too many bits",
    BAD_LENGTH: "has a length that does not fit into the record",
    BAD_DELTA: "has an offset delta other than its position",
    BAD_SIZE: "has another size than its length says",
    LEFT_OVER: "is followed by bytes that belong to no record",
    TIME_OVERFLOW: "has a timestamp that does not fit into 64 bits of microseconds",
    BAD_BUFFER: "needs bytes outside of its buffers",
    BAD_OFFSETS: "has offsets that decrease or lie outside of the data",
}


cdef struct Cursor:
    const uint8_t *at
    const uint8_t *stop
    Fault fault


cdef struct Totals:
    # Sums over all records of a batch, from which the sizes of the buffers follow.
    int64_t key_nulls
    int64_t key_bytes
    int64_t value_nulls
    int64_t value_bytes
    int64_t records_with_headers
    int64_t headers
    int64_t name_bytes
    int64_t header_value_nulls
    int64_t header_value_bytes
    int64_t time_min
    int64_t time_max


cdef struct Column:
    # Where the next value of a column of bytes is written.
    uint8_t *valid
    int32_t *offsets
    uint8_t *data
    int32_t used


cdef inline uint64_t read_unsigned(Cursor *cursor, int bits) noexcept nogil:
    """Read a base-128 number of at most `bits` bits."""
    cdef uint64_t number = 0
    cdef uint64_t part
    cdef int shift = 0
    while cursor.at < cursor.stop:
        part = cursor.at[0] & 0x7F
        if shift >= bits or (shift + 7 > bits and part >> (bits - shift)):
            cursor.fault = BAD_NUMBER
            return 0
        number |= part << shift
        shift += 7
        cursor.at += 1
        if (cursor.at - 1)[0] < 0x80:
            return number
    cursor.fault = TRUNCATED
    return 0


cdef inline int64_t read_signed(Cursor *cursor, int bits) noexcept nogil:
    cdef uint64_t number
    if cursor.at < cursor.stop and cursor.at[0] < 0x80:
        number = cursor.at[0]
        cursor.at += 1
    else:
        number = read_unsigned(cursor, bits)
    return <int64_t>(number >> 1) ^ -<int64_t>(number & 1)


cdef inline const uint8_t *read_bytes(Cursor *cursor, int64_t length) noexcept nogil:
    """Return the start of `length` bytes, after which the cursor continues."""
    cdef const uint8_t *start = cursor.at
    if length < 0 or length > cursor.stop - cursor.at:
        cursor.fault = BAD_LENGTH
        return start
    cursor.at += length
    return start


cdef inline int64_t time_of(int64_t base_ms, int64_t delta_ms, int64_t now_us, Fault *fault) noexcept nogil:
    """Return base plus delta in microseconds; -1 means no timestamp, which becomes `now_us`."""
    cdef int64_t time_ms
    if (delta_ms > 0 and base_ms > INT64_MAX - delta_ms) or (delta_ms < 0 and base_ms < INT64_MIN - delta_ms):
        fault[0] = TIME_OVERFLOW
        return 0
    time_ms = base_ms + delta_ms
    if time_ms == -1:
        return now_us
    if time_ms > INT64_MAX // 1000 or time_ms < -(INT64_MAX // 1000):
        fault[0] = TIME_OVERFLOW
        return 0
    return time_ms * 1000


cdef int64_t measure(
    const uint8_t *records, int64_t size, int64_t count, int64_t base_ms, int64_t now_us, Totals *totals, Fault *fault
) noexcept nogil:
    """Check every record and add up its sizes; return the number of the record with a fault."""
    cdef Cursor cursor
    cdef const uint8_t *end = records + size
    cdef int64_t number, length, time_us, item
    cdef int32_t headers
    memset(totals, 0, sizeof(Totals))
    totals.time_min = INT64_MAX
    totals.time_max = INT64_MIN
    cursor.at = records
    cursor.fault = NO_FAULT
    fault[0] = NO_FAULT
    for number in range(count):
        cursor.stop = end
        length = read_signed(&cursor, 32)
        if cursor.fault == NO_FAULT and (length < 0 or length > end - cursor.at):
            cursor.fault = BAD_LENGTH
        if cursor.fault != NO_FAULT:
            break
        cursor.stop = cursor.at + length
        read_bytes(&cursor, 1)
        if cursor.fault != NO_FAULT:
            break
        time_us = time_of(base_ms, read_signed(&cursor, 64), now_us, &cursor.fault)
        if time_us < totals.time_min:
            totals.time_min = time_us
        if time_us > totals.time_max:
            totals.time_max = time_us
        if read_signed(&cursor, 32) != number and cursor.fault == NO_FAULT:
            cursor.fault = BAD_DELTA
        if cursor.fault != NO_FAULT:
            break
        length = read_signed(&cursor, 32)
        if length == -1:
            totals.key_nulls += 1
        else:
            read_bytes(&cursor, length)
            totals.key_bytes += length
        if cursor.fault != NO_FAULT:
            break
        length = read_signed(&cursor, 32)
        if length == -1:
            totals.value_nulls += 1
        else:
            read_bytes(&cursor, length)
            totals.value_bytes += length
        headers = <int32_t>read_signed(&cursor, 32)
        if headers < 0 and cursor.fault == NO_FAULT:
            cursor.fault = BAD_LENGTH
        if cursor.fault != NO_FAULT:
            break
        if headers:
            totals.records_with_headers += 1
            totals.headers += headers
            for item in range(headers):
                length = read_signed(&cursor, 32)
                read_bytes(&cursor, length)
                totals.name_bytes += length
                if cursor.fault != NO_FAULT:
                    break
                length = read_signed(&cursor, 32)
                if length == -1:
                    totals.header_value_nulls += 1
                else:
                    read_bytes(&cursor, length)
                    totals.header_value_bytes += length
                if cursor.fault != NO_FAULT:
                    break
        if cursor.at != cursor.stop and cursor.fault == NO_FAULT:
            cursor.fault = BAD_SIZE
        if cursor.fault != NO_FAULT:
            break
    else:
        number = count - 1
        if cursor.at != end:
            cursor.fault = LEFT_OVER
    fault[0] = cursor.fault
    return number


cdef inline void put(Column *column, int64_t row, Cursor *cursor) noexcept nogil:
    """Copy the value at the cursor into the column; a length of -1 is null."""
    cdef int64_t length = read_signed(cursor, 32)
    if length >= 0:
        memcpy(column.data + column.used, cursor.at, length)
        cursor.at += length
        column.used += <int32_t>length
        if column.valid is not NULL:
            column.valid[row >> 3] |= 1 << (row & 7)
    column.offsets[row + 1] = column.used


cdef void fill(
    const uint8_t *records, int64_t size, int64_t count, int64_t base_ms, int64_t now_us,
    uint8_t *body, const int64_t *places, const Totals *totals
) noexcept nogil:
    """Copy records that `measure` has checked into the zeroed buffers at `places`."""
    cdef Cursor cursor
    cdef Column key, value, name, header_value
    cdef Fault fault = NO_FAULT
    cdef int64_t *times = <int64_t *>(body + places[2 * TIMES])
    cdef int32_t *lists = <int32_t *>(body + places[2 * HEADERS + 2])
    cdef uint8_t *filled = body + places[2 * HEADERS]
    cdef int64_t row, item = 0, headers, rest
    column_at(&key, body, places, KEY)
    column_at(&value, body, places, VALUE)
    column_at(&name, body, places, NAME)
    column_at(&header_value, body, places, HEADER_VALUE)
    cursor.at = records
    cursor.stop = records + size
    cursor.fault = NO_FAULT
    for row in range(count):
        read_signed(&cursor, 32)
        cursor.at += 1
        times[row] = time_of(base_ms, read_signed(&cursor, 64), now_us, &fault)
        read_signed(&cursor, 32)
        put(&key, row, &cursor)
        put(&value, row, &cursor)
        headers = read_signed(&cursor, 32)
        if headers and totals.records_with_headers != count:
            filled[row >> 3] |= 1 << (row & 7)
        for rest in range(headers):
            put(&name, item, &cursor)
            put(&header_value, item, &cursor)
            item += 1
        lists[row + 1] = <int32_t>item


cdef inline void column_at(Column *column, uint8_t *body, const int64_t *places, int first) noexcept nogil:
    column.valid = body + places[2 * first] if places[2 * first + 1] else NULL
    column.offsets = <int32_t *>(body + places[2 * first + 2])
    column.data = body + places[2 * first + 4]
    column.used = 0


cdef int64_t arrange(int64_t count, const Totals *totals, int64_t *places) noexcept nogil:
    """Write start and size of each buffer into `places`; return the size of all."""
    cdef int64_t[BUFFERS] sizes
    cdef int64_t at = 0
    cdef int number
    cdef int64_t bits = (count + 7) >> 3
    cdef int64_t header_bits = (totals.headers + 7) >> 3
    memset(sizes, 0, sizeof(sizes))
    sizes[KEY] = bits if totals.key_nulls else 0
    sizes[KEY + 1] = 4 * (count + 1)
    sizes[KEY + 2] = totals.key_bytes
    sizes[VALUE] = bits if totals.value_nulls else 0
    sizes[VALUE + 1] = 4 * (count + 1)
    sizes[VALUE + 2] = totals.value_bytes
    sizes[TIMES] = 8 * count
    sizes[HEADERS] = bits if totals.records_with_headers != count else 0
    sizes[HEADERS + 1] = 4 * (count + 1)
    sizes[NAME + 1] = 4 * (totals.headers + 1)
    sizes[NAME + 2] = totals.name_bytes
    sizes[HEADER_VALUE] = header_bits if totals.header_value_nulls else 0
    sizes[HEADER_VALUE + 1] = 4 * (totals.headers + 1)
    sizes[HEADER_VALUE + 2] = totals.header_value_bytes
    for number in range(BUFFERS):
        places[2 * number] = at
        places[2 * number + 1] = sizes[number]
        at += (sizes[number] + 7) & ~<int64_t>7
    return at


def decode(records, int64_t count, int64_t base_timestamp_ms, int64_t now_us, Py_ssize_t room):
    """Return the columns of the records of a batch, after `room` zero bytes.

    Returns (bytearray, places, nulls, times): start and size of each buffer, counted from the end of the room; the
    nulls of key, value, headers and header values; the smallest and the largest timestamp. Records without a timestamp
    get `now_us`. Raises `ValueError` for bytes that are not exactly `count` records, and `OverflowError` for a
    timestamp that microseconds cannot express; both name the record.
    """
    cdef Py_buffer view
    cdef Totals totals
    cdef Fault fault
    cdef int64_t[2 * BUFFERS] places
    cdef int64_t number, size
    cdef uint8_t *body
    PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
    try:
        if count < 1 or count > view.len // RECORD_BYTES_MIN or view.len > INT32_MAX or not 0 <= room <= INT32_MAX:
            raise ValueError(f"{view.len} bytes cannot be {count} records")
        if view.len > LOCKED_BYTES_MAX:
            with nogil:
                number = measure(<const uint8_t *>view.buf, view.len, count, base_timestamp_ms, now_us, &totals, &fault)
        else:
            number = measure(<const uint8_t *>view.buf, view.len, count, base_timestamp_ms, now_us, &totals, &fault)
        if fault != NO_FAULT:
            raise (OverflowError if fault == TIME_OVERFLOW else ValueError)(f"record {number} {FAULTS[fault]}")
        size = arrange(count, &totals, places)
        result = PyByteArray_FromStringAndSize(NULL, room + size)
        body = <uint8_t *>PyByteArray_AsString(result)
        if view.len > LOCKED_BYTES_MAX:
            with nogil:
                memset(body, 0, room + size)
                fill(<const uint8_t *>view.buf, view.len, count, base_timestamp_ms, now_us, body + room, places, &totals)
        else:
            memset(body, 0, room + size)
            fill(<const uint8_t *>view.buf, view.len, count, base_timestamp_ms, now_us, body + room, places, &totals)
    finally:
        PyBuffer_Release(&view)
    nulls = (totals.key_nulls, totals.value_nulls, count - totals.records_with_headers, totals.header_value_nulls)
    return result, tuple([places[number] for number in range(2 * BUFFERS)]), nulls, (totals.time_min, totals.time_max)


cdef struct Source:
    # A column of bytes of `encode`.
    const uint8_t *valid
    const uint8_t *offsets
    const uint8_t *data
    int64_t data_bytes


cdef inline int32_t load_32(const uint8_t *numbers, int64_t row) noexcept nogil:
    """Read a number at a position that may not be a multiple of its size."""
    cdef int32_t number
    memcpy(&number, numbers + 4 * row, 4)
    return number


cdef inline int64_t load_ms(const uint8_t *times, int64_t row) noexcept nogil:
    """Read microseconds as milliseconds, rounded down."""
    cdef int64_t time_us, time_ms
    memcpy(&time_us, times + 8 * row, 8)
    time_ms = time_us // 1000
    return time_ms - 1 if time_ms * 1000 > time_us else time_ms


cdef inline bint is_valid(const uint8_t *valid, int64_t row) noexcept nogil:
    return valid is NULL or (valid[row >> 3] >> (row & 7)) & 1


cdef inline Fault span(const uint8_t *offsets, int64_t row, int64_t limit, int64_t *start, int64_t *length) noexcept nogil:
    """Read two neighbouring offsets."""
    cdef int64_t stop = load_32(offsets, row + 1)
    start[0] = load_32(offsets, row)
    length[0] = stop - start[0]
    return BAD_OFFSETS if start[0] < 0 or stop < start[0] or stop > limit else NO_FAULT


cdef inline uint64_t zigzag(int64_t number) noexcept nogil:
    return (<uint64_t>number << 1) ^ <uint64_t>(number >> 63)


cdef inline int size_of(int64_t number) noexcept nogil:
    """Return the size of a base-128 number in bytes."""
    cdef uint64_t rest = zigzag(number)
    cdef int size = 1
    while rest >= 0x80:
        rest >>= 7
        size += 1
    return size


cdef inline uint8_t *write(uint8_t *at, int64_t number) noexcept nogil:
    cdef uint64_t rest = zigzag(number)
    while rest >= 0x80:
        at[0] = <uint8_t>(rest | 0x80)
        at += 1
        rest >>= 7
    at[0] = <uint8_t>rest
    return at + 1


cdef inline uint8_t *write_value(uint8_t *at, const uint8_t *value, int64_t length) noexcept nogil:
    """Write a length and that many bytes; a length of -1 is null."""
    at = write(at, length)
    if length > 0:
        memcpy(at, value, length)
        at += length
    return at


cdef inline Fault value_at(const Source *source, int64_t row, int64_t *start, int64_t *length) noexcept nogil:
    cdef Fault fault = span(source.offsets, row, source.data_bytes, start, length)
    if not is_valid(source.valid, row):
        length[0] = -1
    return fault


cdef inline int64_t value_size(int64_t length) noexcept nogil:
    return size_of(length) + (length if length > 0 else 0)


cdef Fault write_records(
    const uint8_t *body, const int64_t *places, bint has_deltas, int64_t rows, int64_t headers, uint8_t **to, int64_t *row_at
) noexcept nogil:
    """Write all records to `to`, which has room for them; `row_at` becomes the number of the record with a fault."""
    cdef Source key, value, name, header_value
    cdef const uint8_t *times = body + places[2 * TIMES]
    cdef const uint8_t *filled = body + places[2 * HEADERS] if places[2 * HEADERS + 1] else NULL
    cdef const uint8_t *lists = body + places[2 * HEADERS + 2]
    cdef uint8_t *at = to[0]
    cdef int64_t base_ms = load_ms(times, 0)
    cdef int64_t row, item, delta, delta_ms, size, first, count
    cdef int64_t key_start, key_length, value_start, value_length, start, length
    cdef Fault fault
    source_at(&key, body, places, KEY)
    source_at(&value, body, places, VALUE)
    source_at(&name, body, places, NAME)
    source_at(&header_value, body, places, HEADER_VALUE)
    for row in range(rows):
        row_at[0] = row
        delta_ms = load_ms(times, row) - base_ms
        delta = load_32(body + places[2 * DELTAS], row) if has_deltas else row
        fault = value_at(&key, row, &key_start, &key_length)
        if fault == NO_FAULT:
            fault = value_at(&value, row, &value_start, &value_length)
        if fault == NO_FAULT:
            fault = span(lists, row, headers, &first, &count)
        if fault != NO_FAULT:
            return fault
        if not is_valid(filled, row):
            count = 0
        size = 1 + size_of(delta_ms) + size_of(delta) + value_size(key_length) + value_size(value_length) + size_of(count)
        for item in range(first, first + count):
            fault = span(name.offsets, item, name.data_bytes, &start, &length)
            size += value_size(length)
            if fault == NO_FAULT:
                fault = value_at(&header_value, item, &start, &length)
                size += value_size(length)
            if fault != NO_FAULT:
                return fault
        at = write(at, size)
        at[0] = 0
        at = write(at + 1, delta_ms)
        at = write(at, delta)
        at = write_value(at, key.data + key_start, key_length)
        at = write_value(at, value.data + value_start, value_length)
        at = write(at, count)
        for item in range(first, first + count):
            span(name.offsets, item, name.data_bytes, &start, &length)
            at = write_value(at, name.data + start, length)
            value_at(&header_value, item, &start, &length)
            at = write_value(at, header_value.data + start, length)
    to[0] = at
    return NO_FAULT


cdef inline void source_at(Source *source, const uint8_t *body, const int64_t *places, int first) noexcept nogil:
    source.valid = body + places[2 * first] if places[2 * first + 1] else NULL
    source.offsets = body + places[2 * first + 2]
    source.data = body + places[2 * first + 4]
    source.data_bytes = places[2 * first + 5]


cdef bint is_inside(const int64_t *places, int buffers, int64_t size, int64_t rows, int64_t headers) noexcept nogil:
    """Return whether every buffer lies inside of the body and is long enough for its rows."""
    cdef int64_t[BUFFERS_WITH_DELTAS] needed
    cdef int number
    memset(needed, 0, sizeof(needed))
    needed[KEY] = needed[VALUE] = needed[HEADERS] = (rows + 7) >> 3
    needed[HEADER_VALUE] = (headers + 7) >> 3
    needed[KEY + 1] = needed[VALUE + 1] = needed[HEADERS + 1] = 4 * (rows + 1)
    needed[TIMES] = 8 * rows
    needed[DELTAS] = 4 * rows
    if headers:
        needed[NAME + 1] = needed[HEADER_VALUE + 1] = 4 * (headers + 1)
    for number in range(buffers):
        if places[2 * number + 1] < needed[number] and not (places[2 * number + 1] == 0 and is_bitmap(number)):
            return False
        if places[2 * number] < 0 or places[2 * number + 1] < 0:
            return False
        if places[2 * number] > size or places[2 * number + 1] > size - places[2 * number]:
            return False
    return True


cdef inline bint is_bitmap(int number) noexcept nogil:
    """Return whether a buffer is a bitmap that `encode` reads; it is empty for a column without nulls."""
    return number == KEY or number == VALUE or number == HEADERS or number == HEADER_VALUE


def encode(body, tuple places, int64_t rows, int64_t headers, Py_ssize_t room):
    """Return the records of columns, after `room` zero bytes, and the timestamp of the first in milliseconds.

    `body`: the buffers of the columns. `places`: start and size of each buffer in it, as `decode` returns them, with
    two more for the column of offset deltas if there is one. `rows`: number of records, at least 1; `headers`: number
    of headers of all records. Raises `ValueError` for buffers that are too short or for offsets that lie outside of
    them, and names the record.
    """
    cdef Py_buffer view
    cdef int64_t[2 * BUFFERS_WITH_DELTAS] at
    cdef int64_t row = 0, size, base_ms
    cdef int buffers = <int>(len(places) // 2), number
    cdef uint8_t *start
    cdef uint8_t *stop
    cdef Fault fault
    if len(places) != 2 * BUFFERS and len(places) != 2 * BUFFERS_WITH_DELTAS:
        raise ValueError(f"{len(places)} numbers cannot be the places of {BUFFERS} or {BUFFERS_WITH_DELTAS} buffers")
    if not (1 <= rows <= INT32_MAX // 64 and 0 <= headers <= INT32_MAX // 16 and 0 <= room <= INT32_MAX):
        raise ValueError(f"{rows} records with {headers} headers are not in one batch")
    for number in range(2 * buffers):
        at[number] = places[number]
    PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
    try:
        if view.len > INT32_MAX // 2 or not is_inside(at, buffers, view.len, rows, headers):
            raise ValueError(f"buffers of {rows} records lie outside of {view.len} bytes")
        # The largest sizes of the numbers of a record and of a header, and all values.
        size = room + 36 * rows + 10 * headers
        for number in (KEY, VALUE, NAME, HEADER_VALUE):
            size += at[2 * number + 5]
        result = PyByteArray_FromStringAndSize(NULL, size)
        start = <uint8_t *>PyByteArray_AsString(result)
        memset(start, 0, room)
        stop = start + room
        base_ms = load_ms(<const uint8_t *>view.buf + at[2 * TIMES], 0)
        if size > LOCKED_BYTES_MAX:
            with nogil:
                fault = write_records(<const uint8_t *>view.buf, at, buffers == BUFFERS_WITH_DELTAS, rows, headers, &stop, &row)
        else:
            fault = write_records(<const uint8_t *>view.buf, at, buffers == BUFFERS_WITH_DELTAS, rows, headers, &stop, &row)
        if fault != NO_FAULT:
            raise ValueError(f"record {row} {FAULTS[fault]}")
        size = stop - start
    finally:
        PyBuffer_Release(&view)
    PyByteArray_Resize(result, size)
    return result, base_ms
