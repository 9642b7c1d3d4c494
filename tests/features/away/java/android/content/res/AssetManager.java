package android.content.res;

import java.io.File;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;

public final class AssetManager {
    private static File file(String name) {
        return new File(System.getProperty("assets"), name);
    }

    public String[] list(String name) {
        String[] names = file(name).list();
        return names == null ? new String[0] : names;
    }

    public InputStream open(String name) throws IOException {
        return new FileInputStream(file(name));
    }
}
