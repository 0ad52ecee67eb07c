/* What several parts of the accelerator use. */

#include "accelerator.h"

PyObject *defer(const char *name, PyObject *arguments)
{
    if (PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_MemoryError) || !PyErr_ExceptionMatches(PyExc_Exception)) {
            return NULL;
        }
        PyErr_Clear();
    }
    PyObject *twin = bound(name);
    return twin == NULL ? NULL : PyObject_CallObject(twin, arguments);
}

bool maker_open(Maker *maker, PyObject *type, Py_ssize_t count)
{
    memset(maker, 0, sizeof *maker);
    if (type == NULL) {
        return false;
    }
    if (!PyType_Check(type) || !PyType_IsSubtype((PyTypeObject *)type, &PyTuple_Type)) {
        PyErr_SetString(PyExc_TypeError, "a named tuple is needed");
        return false;
    }
    maker->make = (newfunc)PyType_GetSlot(&PyTuple_Type, Py_tp_new);
    maker->items = PyTuple_New(count);
    maker->arguments = maker->items == NULL ? NULL : PyTuple_Pack(1, maker->items);
    if (maker->arguments == NULL) {
        Py_CLEAR(maker->items);
        return false;
    }
    maker->type = (PyTypeObject *)Py_NewRef(type); /* a call may replace what is bound */
    Py_DECREF(maker->items); /* The arguments keep it, so it has one reference. */
    PyObject_GC_UnTrack(maker->items);
    PyObject_GC_UnTrack(maker->arguments);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyTuple_SetItem(maker->items, i, Py_NewRef(Py_None));
    }
    return true;
}

void maker_close(Maker *maker)
{
    Py_CLEAR(maker->arguments);
    Py_CLEAR(maker->type);
}

bool maker_set(Maker *maker, Py_ssize_t i, PyObject *value)
{
    return value != NULL && PyTuple_SetItem(maker->items, i, value) == 0;
}

PyObject *maker_make(Maker *maker)
{
    return maker->make(maker->type, maker->arguments, NULL);
}

PyObject *untrack(PyObject *tuple)
{
    if (tuple != NULL) {
        PyObject_GC_UnTrack(tuple);
    }
    return tuple;
}

PyObject *make_stat(Maker *stat, PyObject *path)
{
    bool plain = path != NULL && PyUnicode_CheckExact(path);
    PyObject *made = maker_set(stat, 0, path) ? maker_make(stat) : NULL;
    return plain ? untrack(made) : made;
}

bool get_attribute(PyObject *owner, PyObject *name, PyTypeObject *type, PyObject **found)
{
    *found = PyObject_GetAttr(owner, name);
    return *found != NULL && (type == NULL || PyObject_TypeCheck(*found, type));
}

bool get_number(PyObject *owner, PyObject *name, Py_ssize_t *number)
{
    PyObject *found = PyObject_GetAttr(owner, name);
    *number = found == NULL ? -1 : PyLong_AsSsize_t(found);
    Py_XDECREF(found);
    return *number >= 0;
}

bool set_number(PyObject *owner, PyObject *name, Py_ssize_t number)
{
    PyObject *value = PyLong_FromSsize_t(number);
    bool fine = value != NULL && PyObject_SetAttr(owner, name, value) == 0;
    Py_XDECREF(value);
    return fine;
}
