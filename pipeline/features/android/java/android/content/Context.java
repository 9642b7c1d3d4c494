package android.content;

import android.content.pm.ApplicationInfo;
import android.content.res.AssetManager;
import java.io.File;

public abstract class Context {
    public abstract ApplicationInfo getApplicationInfo();

    public abstract AssetManager getAssets();

    public abstract File getNoBackupFilesDir();
}
