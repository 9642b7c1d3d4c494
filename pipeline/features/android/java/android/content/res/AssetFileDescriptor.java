package android.content.res;

import java.io.Closeable;
import java.io.FileInputStream;
import java.io.IOException;

public class AssetFileDescriptor implements Closeable {
    public native FileInputStream createInputStream() throws IOException;

    public native long getStartOffset();

    public native long getDeclaredLength();

    @Override
    public native void close() throws IOException;
}
