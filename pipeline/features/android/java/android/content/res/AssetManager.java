package android.content.res;

import java.io.IOException;
import java.io.InputStream;

public final class AssetManager {
    public native AssetFileDescriptor openFd(String name) throws IOException;

    public native InputStream open(String name) throws IOException;
}
