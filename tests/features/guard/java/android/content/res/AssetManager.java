package android.content.res;

import java.io.File;
import java.io.FileInputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;

/** The assets of an app that compresses them: none is mapped. */
public final class AssetManager {
    public AssetFileDescriptor openFd(String name) throws IOException {
        throw new FileNotFoundException(name);
    }

    public InputStream open(String name) throws IOException {
        return new FileInputStream(new File(System.getProperty("assets"), name));
    }
}
