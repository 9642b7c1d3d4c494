package android.system;

import java.io.FileDescriptor;

public final class Os {
    public static native FileDescriptor open(String path, int flags, int mode) throws ErrnoException;

    public static native void fsync(FileDescriptor descriptor) throws ErrnoException;

    public static native void close(FileDescriptor descriptor) throws ErrnoException;

    public static native void setenv(String name, String value, boolean overwrite) throws ErrnoException;
}
