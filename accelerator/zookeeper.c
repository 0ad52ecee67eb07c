/* ZooKeeper's multis and multi-reads: twins of functions in stores/zookeeper (jute, puts, gets).

   Answers of a server are read with every length checked. What does not fit goes to the Python twin,
   which raises the error. */

#include "accelerator.h"

/* As in jute.py. */
enum {
    ERROR = -1,
    EPHEMERAL = -2,
    SEQUENTIAL = -3,
    CREATE = 1,
    DELETE = 2,
    EXISTS = 3,
    GET_DATA = 4,
    SET_DATA = 5,
    GET_CHILDREN = 8,
    CHECK = 13,
};
enum { HEADER_SIZE = 9, STAT_SIZE = 68, LENGTH_SIZE = 4, UPDATE_SIZE = HEADER_SIZE + STAT_SIZE };

/* ABSENT, ANY_VERSION, and the constants of groups.py, packets.py and gets.py. */
enum { ABSENT = -1, ANY_VERSION = -1, CREATE_OVERHEAD = 17, READ_OVERHEAD = 14 };
enum { ANSWER_BYTES = 1 << 20, ENTRY_BYTES = 81, SMALL = 1024, PACKET_READS = 128 };

/* What became of one operation. */
typedef enum { FAILED = -1, STOP, DONE, DEFER } Outcome;

/* Return what the Python twin returns. */
static PyObject *defer(const char *name, PyObject *arguments)
{
    if (PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_MemoryError)) {
            return NULL;
        }
        PyErr_Clear(); /* The twin raises its own. */
    }
    PyObject *twin = bound(name);
    return twin == NULL ? NULL : PyObject_CallObject(twin, arguments);
}

/* Sequences: only lists and tuples are read here. */

static Py_ssize_t length_of(PyObject *sequence)
{
    return PyList_Check(sequence)    ? PyList_Size(sequence)
           : PyTuple_Check(sequence) ? PyTuple_Size(sequence)
                                     : -1;
}

/* Return an item, a new reference, or NULL. */
static PyObject *item(PyObject *sequence, Py_ssize_t i)
{
    PyObject *found = NULL;
    if (PyList_Check(sequence)) {
        found = PyList_GetItem(sequence, i);
    } else if (PyTuple_Check(sequence)) {
        found = PyTuple_GetItem(sequence, i);
    } else {
        PyErr_SetString(PyExc_TypeError, "neither a list nor a tuple");
    }
    Py_XINCREF(found);
    return found;
}

/* Read an item of a tuple as a number. */
static bool number_at(PyObject *tuple, Py_ssize_t i, long long *number)
{
    PyObject *found = PyTuple_Check(tuple) ? PyTuple_GetItem(tuple, i) : NULL;
    if (found == NULL || !PyLong_Check(found)) {
        return false;
    }
    *number = PyLong_AsLongLong(found);
    return *number != -1 || !PyErr_Occurred();
}

/* Read the opcode and the place of a step. */
static bool read_step(PyObject *step, long long *opcode, long long *place)
{
    return number_at(step, 0, opcode) && number_at(step, 1, place) && *place >= 0;
}

/* Named tuples. Their items are set in a scratch tuple, which keeps those that do not change. */

typedef struct {
    newfunc make;
    PyTypeObject *type;
    PyObject *items;
    PyObject *arguments;
} Maker;

static bool maker_open(Maker *maker, const char *name, Py_ssize_t count)
{
    memset(maker, 0, sizeof *maker);
    PyObject *type = bound(name);
    if (type == NULL || !PyType_Check(type) ||
        !PyType_IsSubtype((PyTypeObject *)type, &PyTuple_Type)) {
        return false;
    }
    maker->type = (PyTypeObject *)type;
    maker->make = (newfunc)PyType_GetSlot(&PyTuple_Type, Py_tp_new);
    maker->items = PyTuple_New(count);
    maker->arguments = maker->items == NULL ? NULL : PyTuple_Pack(1, maker->items);
    if (maker->arguments == NULL) {
        Py_CLEAR(maker->items);
        return false;
    }
    Py_DECREF(maker->items); /* The arguments keep it, so it has one reference. */
    PyObject_GC_UnTrack(maker->items);
    PyObject_GC_UnTrack(maker->arguments);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyTuple_SetItem(maker->items, i, Py_NewRef(Py_None));
    }
    return true;
}

static void maker_close(Maker *maker)
{
    Py_CLEAR(maker->arguments);
}

/* Set an item. Steals the reference, which may be NULL with an error set. */
static bool maker_set(Maker *maker, Py_ssize_t i, PyObject *value)
{
    return value != NULL && PyTuple_SetItem(maker->items, i, value) == 0;
}

static PyObject *maker_make(Maker *maker)
{
    return maker->make(maker->type, maker->arguments, NULL);
}

/* Take a tuple from the garbage collector, which would look at it again and again. Nothing in it may
   refer to other objects, so it cannot be part of a cycle. Python does the same with plain tuples. */
static PyObject *untrack(PyObject *tuple)
{
    if (tuple != NULL) {
        PyObject_GC_UnTrack(tuple);
    }
    return tuple;
}

/* Make a Stat for a path. */
static PyObject *make_stat(Maker *stat, PyObject *path)
{
    bool plain = path != NULL && PyUnicode_CheckExact(path);
    PyObject *made = maker_set(stat, 0, path) ? maker_make(stat) : NULL;
    return plain ? untrack(made) : made;
}

/* Big-endian numbers. */

static void put32(char *at, uint32_t number)
{
    at[0] = (char)(number >> 24);
    at[1] = (char)(number >> 16);
    at[2] = (char)(number >> 8);
    at[3] = (char)number;
}

static uint32_t unsigned32(const unsigned char *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static int32_t get32(const unsigned char *at)
{
    return (int32_t)unsigned32(at);
}

static int64_t get64(const unsigned char *at)
{
    return (int64_t)((uint64_t)unsigned32(at) << 32 | unsigned32(at + 4));
}

static PyObject *int32_at(const unsigned char *at)
{
    return PyLong_FromLong(get32(at));
}

static PyObject *int64_at(const unsigned char *at)
{
    return PyLong_FromLongLong(get64(at));
}

/* Write the header of an operation in a multi, and the length of its path; return the end. */
static char *put_header(char *at, int32_t opcode, Py_ssize_t path_bytes)
{
    put32(at, (uint32_t)opcode);
    at[4] = 0;
    put32(at + 5, (uint32_t)-1);
    put32(at + 9, (uint32_t)path_bytes);
    return at + 13;
}

/* An answer. */
typedef struct {
    const unsigned char *at;
    Py_ssize_t left;
} Answer;

static bool answer_open(Answer *answer, PyObject *buffer, Py_ssize_t offset)
{
    if (!PyBytes_Check(buffer) || offset < 0 || offset > PyBytes_Size(buffer)) {
        return false;
    }
    answer->at = (const unsigned char *)PyBytes_AsString(buffer) + offset;
    answer->left = PyBytes_Size(buffer) - offset;
    return true;
}

static void answer_skip(Answer *answer, Py_ssize_t count)
{
    answer->at += count;
    answer->left -= count;
}

/* Say whether the list of results ends here, and the packet, too. */
static bool answer_ends(const Answer *answer)
{
    return answer->left == HEADER_SIZE && get32(answer->at) == -1 && answer->at[4] != 0;
}

/* jute.multi_read */

static PyObject *multi_read(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *reads;
    if (!PyArg_ParseTuple(arguments, "O:multi_read", &reads)) {
        return NULL;
    }
    Py_ssize_t count = length_of(reads);
    Buffer body = {0};
    PyObject *made = NULL;
    if (count < 0) {
        return defer("multi_read", arguments);
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *read = item(reads, i);
        long long opcode = 0;
        char *path = NULL;
        Py_ssize_t path_bytes = 0;
        bool fine = read != NULL && number_at(read, 0, &opcode) && (int32_t)opcode == opcode &&
                    PyTuple_Size(read) == 2 &&
                    PyBytes_AsStringAndSize(PyTuple_GetItem(read, 1), &path, &path_bytes) == 0 &&
                    path_bytes <= INT32_MAX;
        char *at = fine ? buffer_grow(&body, (size_t)path_bytes + READ_OVERHEAD) : NULL;
        if (at != NULL) {
            at = put_header(at, (int32_t)opcode, path_bytes);
            memcpy(at, path, (size_t)path_bytes);
            at[path_bytes] = 0;
        }
        Py_XDECREF(read);
        if (at == NULL) {
            buffer_free(&body);
            return defer("multi_read", arguments);
        }
    }
    char *end = buffer_grow(&body, HEADER_SIZE);
    if (end != NULL) {
        put32(end, (uint32_t)-1);
        end[4] = 1;
        put32(end + 5, (uint32_t)-1);
        made = PyBytes_FromStringAndSize(body.data, (Py_ssize_t)body.size);
    }
    buffer_free(&body);
    return made;
}

/* jute.parse_multi_read */

/* The makers of what a multi-read gives. */
typedef struct {
    Maker node, stat, got;
} Nodes;

static bool nodes_open(Nodes *nodes)
{
    memset(nodes, 0, sizeof *nodes);
    return maker_open(&nodes->node, "ZNode", 9) && maker_open(&nodes->stat, "Stat", 7) &&
           maker_open(&nodes->got, "GetResult", 2) &&
           maker_set(&nodes->stat, 5, Py_NewRef(Py_False)) &&
           maker_set(&nodes->stat, 6, Py_NewRef(Py_False));
}

static void nodes_close(Nodes *nodes)
{
    maker_close(&nodes->node);
    maker_close(&nodes->stat);
    maker_close(&nodes->got);
}

/* Make the result of a get of a path. */
static PyObject *make_got(Nodes *nodes, PyObject *path, PyObject *value, const unsigned char *stat)
{
    bool fine = maker_set(&nodes->got, 0, value) &&
                maker_set(&nodes->stat, 1, int32_at(stat + 32)) &&
                maker_set(&nodes->stat, 2, int64_at(stat + 8)) &&
                maker_set(&nodes->stat, 3, int64_at(stat + 16)) &&
                maker_set(&nodes->stat, 4, int64_at(stat + 24)) &&
                maker_set(&nodes->got, 1, make_stat(&nodes->stat, Py_NewRef(path)));
    PyObject *made = fine ? maker_make(&nodes->got) : NULL;
    return PyUnicode_CheckExact(path) ? untrack(made) : made;
}

/* Read one entry; return NULL if it is not a node or a code, perhaps with an error set. */
static PyObject *parse_entry(Answer *answer, long long asked, PyObject *path, Nodes *nodes)
{
    Maker *node = &nodes->node;
    if (answer->left < HEADER_SIZE + LENGTH_SIZE) {
        return NULL;
    }
    int32_t opcode = get32(answer->at);
    int32_t number = get32(answer->at + HEADER_SIZE);
    if (opcode == ERROR) {
        answer_skip(answer, HEADER_SIZE + LENGTH_SIZE);
        return PyLong_FromLong(number);
    }
    if (opcode != GET_DATA || asked != GET_DATA || number < -1) {
        return NULL;
    }
    Py_ssize_t value_bytes = number > 0 ? number : 0;
    if (answer->left - HEADER_SIZE - LENGTH_SIZE - STAT_SIZE < value_bytes) {
        return NULL;
    }
    answer_skip(answer, HEADER_SIZE + LENGTH_SIZE);
    PyObject *value = number < 0 ? Py_NewRef(Py_None)
                                 : PyBytes_FromStringAndSize((const char *)answer->at, value_bytes);
    answer_skip(answer, value_bytes);
    const unsigned char *stat = answer->at;
    answer_skip(answer, STAT_SIZE);
    if (path != Py_None && number >= 0 && get64(stat + 44) == 0) {
        return make_got(nodes, path, value, stat);
    }
    bool fine = maker_set(node, 0, value) && maker_set(node, 1, PyLong_FromLong(number)) &&
                maker_set(node, 2, int64_at(stat)) && maker_set(node, 3, int64_at(stat + 8)) &&
                maker_set(node, 4, int64_at(stat + 16)) && maker_set(node, 5, int64_at(stat + 24)) &&
                maker_set(node, 6, int32_at(stat + 32)) && maker_set(node, 7, int64_at(stat + 44)) &&
                maker_set(node, 8, int32_at(stat + 56));
    return fine ? untrack(maker_make(node)) : NULL;
}

/* Read a list of names with the Python function for that. */
static PyObject *parse_names(Answer *answer, PyObject *buffer)
{
    Py_ssize_t offset = PyBytes_Size(buffer) - answer->left + HEADER_SIZE;
    PyObject *read = bound("parse_names");
    PyObject *found = read == NULL ? NULL : PyObject_CallFunction(read, "On", buffer, offset);
    PyObject *names = NULL;
    Py_ssize_t end;
    if (found != NULL && PyArg_ParseTuple(found, "On", &names, &end)) {
        Py_ssize_t size = end - offset + HEADER_SIZE;
        names = size <= answer->left ? Py_NewRef(names) : NULL; /* The last name may be cut off. */
        answer_skip(answer, names == NULL ? 0 : size);
    }
    Py_XDECREF(found);
    return names;
}

static PyObject *parse_multi_read(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *reads, *paths, *buffer;
    Py_ssize_t offset;
    Answer answer;
    Nodes nodes = {0};
    if (!PyArg_ParseTuple(arguments, "OOOn:parse_multi_read", &reads, &paths, &buffer, &offset)) {
        return NULL;
    }
    Py_ssize_t count = length_of(reads), named = length_of(paths);
    bool fine = count >= 0 && (named == 0 || named == count) &&
                answer_open(&answer, buffer, offset) && nodes_open(&nodes);
    PyObject *found = fine ? PyList_New(0) : NULL;
    for (Py_ssize_t i = 0; found != NULL && i < count; i++) {
        PyObject *read = item(reads, i), *path = named ? item(paths, i) : Py_NewRef(Py_None);
        PyObject *entry = NULL;
        long long asked;
        if (read != NULL && path != NULL && number_at(read, 0, &asked)) {
            bool names = asked == GET_CHILDREN && answer.left >= HEADER_SIZE &&
                         get32(answer.at) == GET_CHILDREN;
            entry = names ? parse_names(&answer, buffer) : parse_entry(&answer, asked, path, &nodes);
        }
        if (entry == NULL || PyList_Append(found, entry) < 0) {
            Py_CLEAR(found);
        }
        Py_XDECREF(read);
        Py_XDECREF(path);
        Py_XDECREF(entry);
    }
    nodes_close(&nodes);
    if (found == NULL || !answer_ends(&answer)) {
        Py_XDECREF(found);
        return defer("parse_multi_read", arguments);
    }
    return found;
}

/* jute.parse_multi */

/* Read the suffix of a sequential node with the Python function for that. */
static PyObject *parse_suffix(Answer *answer, PyObject *buffer, long long path_bytes)
{
    int32_t number = get32(answer->at + HEADER_SIZE);
    PyObject *read = bound("parse_suffix");
    return read == NULL
               ? NULL
               : PyObject_CallFunction(read, "iLiiOn", SEQUENTIAL, path_bytes, get32(answer->at),
                                       number, buffer, PyBytes_Size(buffer) - answer->left);
}

/* Read the result of one step. */
static bool parse_result(Answer *answer, PyObject *buffer, PyObject *step, PyObject *updates,
                         PyObject *suffixes)
{
    long long opcode, path_bytes;
    if (!number_at(step, 0, &opcode) || !number_at(step, 2, &path_bytes) ||
        answer->left < HEADER_SIZE) {
        return false;
    }
    const unsigned char *at = answer->at;
    int32_t done = get32(at);
    if (opcode == SET_DATA) {
        if (done != SET_DATA || answer->left < UPDATE_SIZE) {
            return false;
        }
        const unsigned char *stat = at + HEADER_SIZE;
        PyObject *update = untrack(PyTuple_New(7));
        bool fine = update != NULL;
        const int offsets[] = {0, 8, 16, 24, 32, 44};
        if (fine) {
            PyTuple_SetItem(update, 0, PyLong_FromLong(SET_DATA));
            for (int k = 0; k < 6; k++) {
                PyObject *field =
                    k == 4 ? int32_at(stat + offsets[k]) : int64_at(stat + offsets[k]);
                fine = fine && field != NULL;
                PyTuple_SetItem(update, k + 1, field);
            }
            fine = fine && PyList_Append(updates, update) == 0;
        }
        Py_XDECREF(update);
        answer_skip(answer, UPDATE_SIZE);
        return fine;
    }
    if (opcode == DELETE || opcode == CHECK) {
        answer_skip(answer, HEADER_SIZE);
        return done == opcode;
    }
    if (done != CREATE || answer->left < HEADER_SIZE + LENGTH_SIZE) {
        return false;
    }
    long long number = get32(at + HEADER_SIZE);
    if (opcode == SEQUENTIAL) {
        PyObject *suffix = parse_suffix(answer, buffer, path_bytes);
        bool fine = suffix != NULL && PyList_Append(suffixes, suffix) == 0;
        Py_XDECREF(suffix);
        if (!fine) {
            return false;
        }
    } else if (number != path_bytes) {
        return false;
    }
    if (number < 0 || number > answer->left - HEADER_SIZE - LENGTH_SIZE) {
        return false;
    }
    answer_skip(answer, HEADER_SIZE + LENGTH_SIZE + (Py_ssize_t)number);
    return true;
}

static PyObject *parse_multi(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *steps, *buffer;
    Py_ssize_t offset;
    Answer answer;
    Maker done;
    if (!PyArg_ParseTuple(arguments, "OOn:parse_multi", &steps, &buffer, &offset)) {
        return NULL;
    }
    Py_ssize_t count = length_of(steps);
    if (count < 0 || !answer_open(&answer, buffer, offset) || answer.left < LENGTH_SIZE ||
        get32(answer.at) == ERROR || !maker_open(&done, "Done", 2)) {
        return defer("parse_multi", arguments);
    }
    PyObject *updates = PyList_New(0), *suffixes = PyList_New(0);
    bool fine = updates != NULL && suffixes != NULL;
    for (Py_ssize_t i = 0; fine && i < count; i++) {
        PyObject *step = item(steps, i);
        fine = step != NULL && parse_result(&answer, buffer, step, updates, suffixes);
        Py_XDECREF(step);
    }
    fine = fine && answer_ends(&answer);
    fine = maker_set(&done, 0, updates) && maker_set(&done, 1, suffixes) && fine;
    PyObject *results = fine ? maker_make(&done) : NULL;
    maker_close(&done);
    return results != NULL ? results : defer("parse_multi", arguments);
}

/* nodes.size_of */

/* The known nodes. */
typedef struct {
    PyObject *young;
    PyObject *old;
} Generations;

static bool generations_read(Generations *known, PyObject *generations)
{
    return PyArg_ParseTuple(generations, "O!O!", &PyDict_Type, &known->young, &PyDict_Type,
                            &known->old);
}

/* Find the size of the value at a path: a borrowed reference, NULL if it is not known. */
static bool find_size(const Generations *known, PyObject *path, PyObject **size)
{
    *size = PyDict_GetItemWithError(known->young, path);
    if (*size == NULL && !PyErr_Occurred()) {
        *size = PyDict_GetItemWithError(known->old, path);
        if (*size != NULL && PyDict_SetItem(known->young, path, *size) < 0) {
            return false;
        }
    }
    return *size != NULL || !PyErr_Occurred();
}

/* puts.add_puts */

typedef struct {
    Generations known;
    PyObject *requests, *paths, *seen;       /* of the batch */
    PyObject *deleted, *fleeting, *made;     /* of the changes */
    PyObject *steps;                         /* of the group */
    PyObject *created;                       /* the first path that the group creates, or None */
    PyObject *last;                          /* a path whose parent is fine, or NULL */
    const char *acl;
    Py_ssize_t acl_bytes, size, operations, room, limit, last_parent_bytes;
    bool ephemeral;                          /* an ephemeral node was added */
    Buffer body;
} Adding;

/* How to send a put. */
typedef struct {
    int opcode;
    int32_t version;
} Step;

/* The attributes of a put. */
typedef struct {
    PyObject *request, *kind, *path, *expected, *value, *options;
} Put;

static bool put_read(Put *put, const Adding *adding, long long place)
{
    memset(put, 0, sizeof *put);
    return place >= 0 && (put->request = item(adding->requests, (Py_ssize_t)place)) != NULL &&
           (put->kind = PyObject_GetAttr(put->request, name_kind)) != NULL &&
           (put->path = item(adding->paths, (Py_ssize_t)place)) != NULL &&
           (put->expected = PyObject_GetAttr(put->request, name_expected_version)) != NULL &&
           (put->value = PyObject_GetAttr(put->request, name_value)) != NULL &&
           (put->options = PyObject_GetAttr(put->request, name_options)) != NULL;
}

static void put_free(Put *put)
{
    Py_XDECREF(put->request);
    Py_XDECREF(put->kind);
    Py_XDECREF(put->path);
    Py_XDECREF(put->expected);
    Py_XDECREF(put->value);
    Py_XDECREF(put->options);
}

/* Say whether a kind has a name; -1 with an error. */
static int is_kind(PyObject *kind, PyObject *name)
{
    return kind == name ? 1 : PyObject_RichCompareBool(kind, name, Py_EQ);
}

/* Say whether an option is on: -1 for neither. */
static int option(PyObject *options, PyObject *name)
{
    PyObject *found = PyObject_GetAttr(options, name);
    int on = found == Py_True ? 1 : found == Py_False ? 0 : -1;
    Py_XDECREF(found);
    return on;
}

static Outcome choose_ephemeral(const Adding *adding, const Put *put, bool looked,
                                long long expected)
{
    int ephemeral = option(put->options, name_ephemeral), sequential = option(put->options, name_sequential);
    PyObject *size;
    if (ephemeral < 0 || sequential < 0) {
        return DEFER;
    }
    if (!ephemeral || sequential || looked) {
        return STOP;
    }
    if (put->expected != Py_None) {
        return expected == ABSENT ? DONE : STOP;
    }
    return !find_size(&adding->known, put->path, &size) ? FAILED : size == NULL ? DONE : STOP;
}

/* Choose the step of a put. */
static Outcome choose_step(const Adding *adding, const Put *put, PyObject *place, Step *step)
{
    PyObject *node = PyDict_GetItemWithError(adding->seen, place), *size;
    long long expected = 0;
    if (node == NULL && PyErr_Occurred()) {
        return FAILED;
    }
    if (put->expected != Py_None) {
        expected = PyLong_Check(put->expected) ? PyLong_AsLongLong(put->expected) : INT64_MAX;
        if ((int32_t)expected != expected || PyErr_Occurred()) {
            return DEFER;
        }
    }
    if (put->options != Py_None) {
        step->opcode = EPHEMERAL;
        return choose_ephemeral(adding, put, node != NULL, expected);
    }
    step->opcode = SET_DATA;
    step->version = (int32_t)expected;
    if (put->expected == Py_None) {
        step->version = ANY_VERSION;
        if (node == NULL) {
            if (!find_size(&adding->known, put->path, &size)) {
                return FAILED;
            }
            node = size == NULL ? Py_None : size;
        }
        if (node == Py_None) {
            step->opcode = CREATE;
        }
    } else if (expected == ABSENT) {
        if (node == NULL || node == Py_None) {
            step->opcode = CREATE;
        } else {
            long long version;
            if (!number_at(node, 6, &version) || (int32_t)version != version) {
                return DEFER;
            }
            step->version = (int32_t)version;
        }
    }
    return DONE;
}

/* Say whether the last change of the group is the creation of a value at a path or above it. */
static Outcome follows_value(const Adding *adding, const char *parent, Py_ssize_t parent_bytes)
{
    for (Py_ssize_t k = PyList_Size(adding->steps) - 1; k >= 0; k--) {
        long long opcode, place;
        if (!read_step(PyList_GetItem(adding->steps, k), &opcode, &place)) {
            return DEFER;
        }
        if (opcode == CHECK) {
            continue;
        }
        if (opcode != CREATE) {
            return DONE;
        }
        PyObject *path = item(adding->paths, (Py_ssize_t)place);
        Py_ssize_t bytes = 0;
        const char *text = path == NULL ? NULL : PyUnicode_AsUTF8AndSize(path, &bytes);
        bool above = text != NULL && bytes <= parent_bytes &&
                     memcmp(text, parent, (size_t)bytes) == 0 &&
                     (bytes == parent_bytes || parent[bytes] == '/');
        Py_XDECREF(path);
        return text == NULL ? DEFER : above ? STOP : DONE;
    }
    return DONE;
}

/* puts._has_parent */
static Outcome has_parent(const Adding *adding, const char *text, Py_ssize_t bytes)
{
    PyObject *parent = PyUnicode_DecodeUTF8(text, bytes, NULL), *size;
    if (parent == NULL) {
        return FAILED;
    }
    Outcome outcome = DONE;
    int barred = PySet_Contains(adding->deleted, parent);
    barred = barred ? barred : PySet_Contains(adding->fleeting, parent);
    int made = PySet_Contains(adding->made, parent);
    if (barred < 0 || made < 0) {
        outcome = FAILED;
    } else if (barred) {
        outcome = STOP;
    } else if (bytes > 0 && !made) {
        outcome = !find_size(&adding->known, parent, &size) ? FAILED : size == NULL ? STOP : DONE;
    }
    Py_DECREF(parent);
    return outcome == DONE ? follows_value(adding, text, bytes) : outcome;
}

/* Write a step, and note it. */
static bool write_step(Adding *adding, PyObject *place, PyObject *path, Step step, const char *text,
                       Py_ssize_t path_bytes, const char *value, Py_ssize_t value_bytes)
{
    Py_ssize_t tail_bytes = step.opcode == SET_DATA ? 4 : adding->acl_bytes;
    size_t size = (size_t)(CREATE_OVERHEAD + path_bytes + value_bytes + tail_bytes);
    char *at = buffer_grow(&adding->body, size);
    if (at == NULL) {
        return false;
    }
    at = put_header(at, step.opcode == EPHEMERAL ? CREATE : step.opcode, path_bytes);
    memcpy(at, text, (size_t)path_bytes);
    at += path_bytes;
    put32(at, (uint32_t)value_bytes);
    memcpy(at + 4, value, (size_t)value_bytes);
    at += 4 + value_bytes;
    if (step.opcode == SET_DATA) {
        put32(at, (uint32_t)step.version);
    } else {
        memcpy(at, adding->acl, (size_t)adding->acl_bytes);
        if (step.opcode == EPHEMERAL) {
            put32(at + adding->acl_bytes - 4, 1);
        }
    }
    PyObject *opcode = PyLong_FromLong(step.opcode), *bytes = PyLong_FromSsize_t(path_bytes);
    PyObject *noted =
        opcode == NULL || bytes == NULL ? NULL : untrack(PyTuple_Pack(3, opcode, place, bytes));
    bool fine = noted != NULL && PyList_Append(adding->steps, noted) == 0 &&
                PySet_Add(adding->made, path) == 0;
    Py_XDECREF(noted);
    Py_XDECREF(opcode);
    Py_XDECREF(bytes);
    if (step.opcode == EPHEMERAL) {
        adding->ephemeral = true;
        fine = fine && PySet_Add(adding->fleeting, path) == 0;
    }
    if (step.opcode != SET_DATA && adding->created == Py_None) {
        Py_DECREF(adding->created);
        adding->created = Py_NewRef(path);
    }
    adding->size += (Py_ssize_t)size;
    adding->operations++;
    return fine;
}

static Outcome add_put(Adding *adding, PyObject *place)
{
    Put put;
    Step step;
    Outcome outcome = DEFER;
    const char *text;
    char *value;
    Py_ssize_t path_bytes, value_bytes;
    long long i = PyLong_Check(place) ? PyLong_AsLongLong(place) : -1;
    if (!put_read(&put, adding, i)) {
        goto end;
    }
    int is_put = is_kind(put.kind, name_put);
    if (is_put == 0 || put.value == Py_None) {
        outcome = STOP;
        goto end;
    }
    if (is_put < 0 || !PyBytes_Check(put.value) ||
        PyBytes_AsStringAndSize(put.value, &value, &value_bytes) < 0 ||
        !PyUnicode_Check(put.path) ||
        (text = PyUnicode_AsUTF8AndSize(put.path, &path_bytes)) == NULL ||
        path_bytes > INT32_MAX || value_bytes > INT32_MAX) {
        goto end;
    }
    outcome = choose_step(adding, &put, place, &step);
    if (outcome != DONE) {
        goto end;
    }
    if (step.opcode != SET_DATA) {
        Py_ssize_t parent_bytes = path_bytes - 1;
        while (parent_bytes >= 0 && text[parent_bytes] != '/') {
            parent_bytes--;
        }
        if (parent_bytes < 0) {
            outcome = DEFER;
            goto end;
        }
        const char *last =
            adding->last == NULL ? NULL : PyUnicode_AsUTF8AndSize(adding->last, NULL);
        if (last == NULL || adding->last_parent_bytes != parent_bytes ||
            memcmp(last, text, (size_t)parent_bytes) != 0) {
            outcome = has_parent(adding, text, parent_bytes);
            if (outcome != DONE) {
                goto end;
            }
            Py_XDECREF(adding->last);
            adding->last = Py_NewRef(put.path);
            adding->last_parent_bytes = parent_bytes;
        }
    }
    Py_ssize_t tail_bytes = step.opcode == SET_DATA ? 4 : adding->acl_bytes;
    if (adding->size + CREATE_OVERHEAD + path_bytes + value_bytes + tail_bytes > adding->room ||
        adding->operations >= adding->limit) {
        outcome = STOP;
    } else if (!write_step(adding, place, put.path, step, text, path_bytes, value, value_bytes)) {
        outcome = FAILED;
    }
end:
    put_free(&put);
    return outcome;
}

static bool set_number(PyObject *owner, PyObject *name, Py_ssize_t number)
{
    PyObject *value = PyLong_FromSsize_t(number);
    bool fine = value != NULL && PyObject_SetAttr(owner, name, value) == 0;
    Py_XDECREF(value);
    return fine;
}

/* Add to the group what was written. */
static bool adding_finish(Adding *adding, PyObject *group, PyObject *batch)
{
    bool fine = true;
    if (adding->body.size) {
        PyObject *parts = PyObject_GetAttr(group, name_parts);
        PyObject *body = PyBytes_FromStringAndSize(adding->body.data, (Py_ssize_t)adding->body.size);
        fine = parts != NULL && body != NULL && PyList_Append(parts, body) == 0;
        Py_XDECREF(parts);
        Py_XDECREF(body);
    }
    if (fine && adding->ephemeral) {
        PyObject *session = PyObject_GetAttr(batch, name_session);
        fine = session != NULL && PyObject_SetAttr(group, name_session, session) == 0;
        Py_XDECREF(session);
    }
    return fine && PyObject_SetAttr(group, name_created, adding->created) == 0 &&
           set_number(group, name_size, adding->size) &&
           set_number(group, name_operations, adding->operations);
}

static bool get_attribute(PyObject *owner, PyObject *name, PyTypeObject *type, PyObject **found)
{
    *found = PyObject_GetAttr(owner, name);
    return *found != NULL && (type == NULL || PyObject_TypeCheck(*found, type));
}

static bool get_number(PyObject *owner, PyObject *name, Py_ssize_t *number)
{
    PyObject *found = PyObject_GetAttr(owner, name);
    *number = found == NULL ? -1 : PyLong_AsSsize_t(found);
    Py_XDECREF(found);
    return *number >= 0;
}

static bool adding_open(Adding *adding, PyObject *group, PyObject *batch, PyObject *changes,
                        PyObject *generations)
{
    return generations_read(&adding->known, generations) &&
           get_attribute(batch, name_requests, NULL, &adding->requests) &&
           get_attribute(batch, name_paths, NULL, &adding->paths) &&
           get_attribute(batch, name_seen, &PyDict_Type, &adding->seen) &&
           get_attribute(changes, name_deleted, &PySet_Type, &adding->deleted) &&
           get_attribute(changes, name_fleeting, &PySet_Type, &adding->fleeting) &&
           get_attribute(changes, name_made, &PySet_Type, &adding->made) &&
           get_attribute(group, name_steps, &PyList_Type, &adding->steps) &&
           get_attribute(group, name_created, NULL, &adding->created) &&
           get_number(group, name_size, &adding->size) &&
           get_number(group, name_operations, &adding->operations);
}

static void adding_close(Adding *adding)
{
    PyObject *held[] = {adding->requests, adding->paths, adding->seen,    adding->deleted,
                        adding->fleeting, adding->made,  adding->steps,   adding->created,
                        adding->last};
    for (size_t i = 0; i < sizeof held / sizeof *held; i++) {
        Py_XDECREF(held[i]);
    }
    buffer_free(&adding->body);
}

static PyObject *add_puts(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *group, *batch, *changes, *generations, *places, *acl;
    Py_ssize_t start;
    Adding adding = {0};
    if (!PyArg_ParseTuple(arguments, "OOOOOnSnn:add_puts", &group, &batch, &changes, &generations,
                          &places, &start, &acl, &adding.room, &adding.limit)) {
        return NULL;
    }
    adding.acl = PyBytes_AsString(acl);
    adding.acl_bytes = PyBytes_Size(acl);
    Py_ssize_t count = length_of(places), end = start;
    Outcome outcome = DEFER;
    if (start >= 0 && count >= 0 && adding.acl_bytes >= 4 &&
        adding_open(&adding, group, batch, changes, generations)) {
        outcome = DONE;
    }
    while (outcome == DONE && end < count) {
        PyObject *place = item(places, end);
        outcome = place == NULL ? DEFER : add_put(&adding, place);
        Py_XDECREF(place);
        end += outcome == DONE;
    }
    PyObject *result = NULL;
    bool stopped = outcome == DONE || outcome == STOP;
    if (outcome == DEFER && PyErr_Occurred()) {
        PyErr_Clear();
    }
    if (outcome != FAILED && (adding.operations == 0 || end == start ||
                              adding_finish(&adding, group, batch))) {
        if (stopped) {
            result = PyLong_FromSsize_t(end);
        } else {
            PyObject *rest = Py_BuildValue("OOOOOnOnn", group, batch, changes, generations, places,
                                           end, acl, adding.room, adding.limit);
            result = rest == NULL ? NULL : defer("add_puts", rest);
            Py_XDECREF(rest);
        }
    }
    adding_close(&adding);
    return result;
}

/* puts.answer_steps */

/* The makers of the Stats of created, ephemeral and set nodes. */
typedef struct {
    Maker created, fleeting, set;
} Stats;

static void stats_close(Stats *stats)
{
    maker_close(&stats->created);
    maker_close(&stats->fleeting);
    maker_close(&stats->set);
}

static bool stats_open(Stats *stats, PyObject *zxid, PyObject *when)
{
    memset(stats, 0, sizeof *stats);
    Maker *makers[] = {&stats->created, &stats->fleeting, &stats->set};
    for (int k = 0; k < 3; k++) {
        PyObject *ephemeral = k == 1 ? Py_True : Py_False;
        PyObject *version = PyLong_FromLong(0);
        if (!maker_open(makers[k], "Stat", 7) || !maker_set(makers[k], 1, version) ||
            !maker_set(makers[k], 2, Py_NewRef(zxid)) || !maker_set(makers[k], 3, Py_NewRef(when)) ||
            !maker_set(makers[k], 4, Py_NewRef(when)) ||
            !maker_set(makers[k], 5, Py_NewRef(ephemeral)) ||
            !maker_set(makers[k], 6, Py_NewRef(ephemeral))) {
            return false;
        }
    }
    return true;
}

/* Make the Stat of a plain put that has set its node. */
static Outcome make_updated(Maker *stat, PyObject *request, PyObject *update, PyObject **made)
{
    PyObject *options = PyObject_GetAttr(request, name_options);
    PyObject *expected = PyObject_GetAttr(request, name_expected_version);
    Outcome outcome = DEFER;
    long long owner;
    if (options == NULL || expected == NULL || !number_at(update, 6, &owner)) {
        goto end;
    }
    long long version = expected == Py_None      ? 1
                        : PyLong_Check(expected) ? PyLong_AsLongLong(expected)
                                                 : 0;
    if (PyErr_Occurred()) {
        goto end;
    }
    if (owner != 0 || options != Py_None || version <= 0) {
        outcome = STOP;
        goto end;
    }
    const Py_ssize_t fields[] = {5, 2, 3, 4}; /* version, mzxid, ctime, mtime */
    bool fine = PyTuple_Size(update) == 7;
    for (int k = 0; fine && k < 4; k++) {
        fine = maker_set(stat, k + 1, Py_NewRef(PyTuple_GetItem(update, fields[k])));
    }
    *made = fine ? make_stat(stat, PyObject_GetAttr(request, name_path)) : NULL;
    outcome = *made == NULL ? DEFER : DONE;
end:
    Py_XDECREF(options);
    Py_XDECREF(expected);
    return outcome;
}

static PyObject *answer_steps(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *steps, *requests, *answers, *updates, *zxid, *when;
    if (!PyArg_ParseTuple(arguments, "OOO!OOO:answer_steps", &steps, &requests, &PyList_Type,
                          &answers, &updates, &zxid, &when)) {
        return NULL;
    }
    Py_ssize_t count = length_of(steps), next_update = 0;
    Stats stats = {0};
    PyObject *left = PyList_New(0);
    bool fine = left != NULL && count >= 0 && stats_open(&stats, zxid, when);
    for (Py_ssize_t k = 0; fine && k < count; k++) {
        PyObject *step = item(steps, k), *request = NULL, *update = NULL, *made = NULL;
        long long opcode = 0, place = 0;
        Outcome outcome = STOP;
        if (step == NULL || !read_step(step, &opcode, &place) ||
            (request = item(requests, (Py_ssize_t)place)) == NULL) {
            outcome = DEFER;
        } else if ((opcode == CREATE || opcode == EPHEMERAL) && zxid != Py_None) {
            Maker *maker = opcode == CREATE ? &stats.created : &stats.fleeting;
            made = make_stat(maker, PyObject_GetAttr(request, name_path));
            outcome = made == NULL ? DEFER : DONE;
        } else if (opcode == SET_DATA) {
            update = item(updates, next_update++);
            outcome = update == NULL ? DEFER : make_updated(&stats.set, request, update, &made);
        } else if (opcode == DELETE) {
            made = Py_NewRef(Py_None);
            outcome = DONE;
        }
        if (outcome == DONE) {
            fine = PyList_SetItem(answers, (Py_ssize_t)place, made) == 0; /* steals it */
        } else if (outcome == STOP) {
            PyObject *entry = Py_BuildValue("LLO", opcode, place, update ? update : Py_None);
            fine = entry != NULL && PyList_Append(left, entry) == 0;
            Py_XDECREF(entry);
        } else {
            fine = false;
        }
        Py_XDECREF(step);
        Py_XDECREF(request);
        Py_XDECREF(update);
    }
    stats_close(&stats);
    if (!fine) {
        Py_XDECREF(left);
        return defer("answer_steps", arguments); /* It sets the same answers again. */
    }
    return left;
}

/* puts.note_steps */

static bool note_size(PyObject *request, PyObject *path, PyObject *young, Py_ssize_t *values,
                      Py_ssize_t *value_bytes)
{
    PyObject *value = PyObject_GetAttr(request, name_value);
    if (value == NULL || value == Py_None) {
        Py_XDECREF(value);
        return value != NULL;
    }
    Py_ssize_t bytes = PyBytes_Check(value) ? PyBytes_Size(value) : -1;
    PyObject *size = bytes < 0 ? NULL : PyLong_FromSsize_t(bytes);
    bool fine = size != NULL && PyDict_SetItem(young, path, size) == 0;
    Py_DECREF(value);
    Py_XDECREF(size);
    *values += 1;
    *value_bytes += bytes;
    return fine;
}

static bool forget(PyObject *sizes, PyObject *path)
{
    int there = PyDict_Contains(sizes, path);
    return there == 0 || (there > 0 && PyDict_DelItem(sizes, path) == 0);
}

static PyObject *note_steps(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *steps, *requests, *paths, *generations;
    Generations known;
    if (!PyArg_ParseTuple(arguments, "OOOO:note_steps", &steps, &requests, &paths, &generations)) {
        return NULL;
    }
    Py_ssize_t count = length_of(steps), values = 0, value_bytes = 0;
    bool fine = count >= 0 && generations_read(&known, generations);
    for (Py_ssize_t k = 0; fine && k < count; k++) {
        PyObject *step = item(steps, k), *request = NULL, *path = NULL;
        long long opcode, place;
        fine = step != NULL && read_step(step, &opcode, &place);
        if (fine && opcode == DELETE) {
            path = item(paths, (Py_ssize_t)place);
            fine = path != NULL && forget(known.young, path) && forget(known.old, path);
        } else if (fine && (opcode == CREATE || opcode == SET_DATA || opcode == EPHEMERAL)) {
            path = item(paths, (Py_ssize_t)place);
            request = item(requests, (Py_ssize_t)place);
            fine = path != NULL && request != NULL &&
                   note_size(request, path, known.young, &values, &value_bytes);
        }
        Py_XDECREF(step);
        Py_XDECREF(path);
        Py_XDECREF(request);
    }
    /* The twin notes the same again. */
    return fine ? Py_BuildValue("nn", values, value_bytes) : defer("note_steps", arguments);
}

/* gets.add_reads */

typedef struct {
    Generations known;
    PyObject *reads, *encoded; /* of the packet */
    PyObject *opcodes, *paths, *alone;
    Py_ssize_t count, answer_bytes, sent_bytes; /* of the packet */
    Py_ssize_t guess, longest, usual;
    Py_ssize_t added, unknown;
} Packing;

static Outcome add_read(Packing *packing, PyObject *place)
{
    long long i = PyLong_Check(place) ? PyLong_AsLongLong(place) : -1;
    PyObject *asked = i < 0 ? NULL : item(packing->opcodes, (Py_ssize_t)i);
    PyObject *path = asked == NULL ? NULL : item(packing->paths, (Py_ssize_t)i);
    PyObject *entry = NULL, *size;
    Py_ssize_t bytes, expected = packing->guess;
    Outcome outcome = DEFER;
    const char *text = path == NULL || !PyUnicode_Check(path)
                           ? NULL
                           : PyUnicode_AsUTF8AndSize(path, &bytes);
    long opcode = asked != NULL && PyLong_Check(asked) ? PyLong_AsLong(asked) : -1;
    if (text == NULL || opcode < 0) {
        goto end;
    }
    int alone = PySet_Contains(packing->alone, place);
    if (alone < 0 || !find_size(&packing->known, path, &size)) {
        outcome = FAILED;
        goto end;
    }
    bool guessed = size == NULL;
    if (!guessed) {
        long long known = PyLong_AsLongLong(size);
        if (known < -1 || known > INT32_MAX) {
            goto end;
        }
        expected = ENTRY_BYTES + (Py_ssize_t)known;
    }
    Py_ssize_t more = READ_OVERHEAD + bytes;
    outcome = STOP;
    if (alone || bytes > packing->longest || (opcode == EXISTS && expected > SMALL) ||
        (packing->count && (packing->count >= PACKET_READS ||
                            packing->answer_bytes + expected > ANSWER_BYTES ||
                            packing->sent_bytes + more > packing->usual))) {
        goto end;
    }
    entry = untrack(Py_BuildValue("ly#", opcode == EXISTS ? (long)GET_DATA : opcode, text, bytes));
    if (entry == NULL || PyList_Append(packing->encoded, entry) < 0 ||
        PyList_Append(packing->reads, place) < 0) {
        outcome = FAILED;
        goto end;
    }
    packing->count++;
    packing->answer_bytes += expected;
    packing->sent_bytes += more;
    packing->added += expected;
    packing->unknown += guessed;
    outcome = DONE;
end:
    Py_XDECREF(asked);
    Py_XDECREF(path);
    Py_XDECREF(entry);
    return outcome;
}

static PyObject *add_reads(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *packet, *waiting, *generations;
    Packing packing = {0};
    Py_ssize_t start, bytes_room, unknown_room;
    if (!PyArg_ParseTuple(arguments, "OOOOnO!Onnnnn:add_reads", &packet, &packing.opcodes,
                          &packing.paths, &waiting, &start, &PySet_Type, &packing.alone,
                          &generations, &packing.guess, &packing.longest, &packing.usual,
                          &bytes_room, &unknown_room)) {
        return NULL;
    }
    Py_ssize_t count = length_of(waiting), end = start;
    Outcome outcome = DEFER;
    if (start >= 0 && count >= 0 && generations_read(&packing.known, generations) &&
        get_attribute(packet, name_reads, &PyList_Type, &packing.reads) &&
        get_attribute(packet, name_encoded, &PyList_Type, &packing.encoded) &&
        get_number(packet, name_answer_bytes, &packing.answer_bytes) &&
        get_number(packet, name_sent_bytes, &packing.sent_bytes)) {
        packing.count = PyList_Size(packing.reads);
        outcome = DONE;
    }
    while (outcome == DONE && end < count && packing.added < bytes_room &&
           packing.unknown < unknown_room) {
        PyObject *place = item(waiting, end);
        outcome = place == NULL ? DEFER : add_read(&packing, place);
        Py_XDECREF(place);
        end += outcome == DONE;
    }
    PyObject *result = NULL;
    if (outcome == DEFER && end == start) {
        result = defer("add_reads", arguments);
    } else if (outcome != FAILED && set_number(packet, name_answer_bytes, packing.answer_bytes) &&
               set_number(packet, name_sent_bytes, packing.sent_bytes)) {
        /* What comes next is for the twin: it is met first by another call. */
        PyErr_Clear();
        result = Py_BuildValue("nnn", end, packing.added, packing.unknown);
    }
    Py_XDECREF(packing.reads);
    Py_XDECREF(packing.encoded);
    return result;
}

PyMethodDef zookeeper_methods[] = {
    {"add_puts", add_puts, METH_VARARGS, NULL},
    {"add_reads", add_reads, METH_VARARGS, NULL},
    {"answer_steps", answer_steps, METH_VARARGS, NULL},
    {"multi_read", multi_read, METH_VARARGS, NULL},
    {"note_steps", note_steps, METH_VARARGS, NULL},
    {"parse_multi", parse_multi, METH_VARARGS, NULL},
    {"parse_multi_read", parse_multi_read, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
