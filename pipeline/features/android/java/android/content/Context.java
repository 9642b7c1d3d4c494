package android.content;

import android.content.pm.ApplicationInfo;
import android.content.res.AssetManager;
import java.io.File;

public abstract class Context {
    public static final String ACTIVITY_SERVICE = "activity";
    public static final String POWER_SERVICE = "power";

    public abstract Context getApplicationContext();

    public abstract Object getSystemService(String name);

    public abstract ContentResolver getContentResolver();

    public abstract ApplicationInfo getApplicationInfo();

    public abstract AssetManager getAssets();

    public abstract File getNoBackupFilesDir();
}
