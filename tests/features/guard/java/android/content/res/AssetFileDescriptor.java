package android.content.res;

import java.io.Closeable;
import java.io.FileInputStream;

public class AssetFileDescriptor implements Closeable {
    public FileInputStream createInputStream() {
        throw new UnsupportedOperationException();
    }

    public long getStartOffset() {
        return 0;
    }

    public long getDeclaredLength() {
        return 0;
    }

    @Override
    public void close() {}
}
