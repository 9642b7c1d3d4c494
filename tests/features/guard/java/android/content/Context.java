package android.content;

import android.app.ActivityManager;
import android.content.pm.ApplicationInfo;
import android.content.res.AssetManager;
import android.os.PowerManager;
import java.io.File;

/** An app on a phone whose storage is a folder. */
public class Context {
    public static final String ACTIVITY_SERVICE = "activity";
    public static final String POWER_SERVICE = "power";

    public Context getApplicationContext() {
        return this;
    }

    public Object getSystemService(String name) {
        return name.equals(ACTIVITY_SERVICE) ? new ActivityManager() : new PowerManager();
    }

    public ContentResolver getContentResolver() {
        return null;
    }

    public ApplicationInfo getApplicationInfo() {
        return new ApplicationInfo();
    }

    public AssetManager getAssets() {
        return new AssetManager();
    }

    public File getNoBackupFilesDir() {
        return new File(System.getProperty("storage"));
    }
}
