// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Mistakes made on purpose.  A debugging kernel that looks for such mistakes must
 * report them, or its silence about the driver means nothing.
 *
 * what=lock    two locks taken in both orders, one after the other
 * what=sleep   what may sleep, under a spin lock
 * what=freed   memory read that was freed
 * what=object  memory freed with a pending timer in it
 * what=dma     a DMA mapping ended that never began
 *
 * Loading it makes the mistake and always fails, so that nothing stays.  None does
 * harm in a kernel that looks, and any other kernel is refused.
 */
#include <linux/dma-mapping.h>
#include <linux/kernel.h>
#include <linux/module.h>
#include <linux/platform_device.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/string.h>
#include <linux/timer.h>

static char *what = "";
module_param(what, charp, 0);

static DEFINE_SPINLOCK(first);
static DEFINE_SPINLOCK(second);

static int plant_lock(void)
{
	spin_lock(&first);
	spin_lock(&second);
	spin_unlock(&second);
	spin_unlock(&first);

	spin_lock(&second);
	spin_lock(&first);
	spin_unlock(&first);
	spin_unlock(&second);
	return 0;
}

static int plant_sleep(void)
{
	spin_lock(&first);
	might_sleep();
	spin_unlock(&first);
	return 0;
}

static int plant_freed(void)
{
	u8 *memory = kmalloc(64, GFP_KERNEL);

	if (!memory)
		return -ENOMEM;
	kfree(memory);
	/* The compiler would see it, too. */
	OPTIMIZER_HIDE_VAR(memory);
	pr_info("pvrdma_planted: %u\n", READ_ONCE(memory[5]));
	return 0;
}

static void timer_over(struct timer_list *timer)
{
}

static int plant_object(void)
{
	struct timer_list *timer = kmalloc(sizeof(*timer), GFP_KERNEL);

	if (!timer)
		return -ENOMEM;
	timer_setup(timer, timer_over, 0);
	mod_timer(timer, jiffies + 3600 * HZ);
	/* The kernel's check takes the timer back. */
	kfree(timer);
	return 0;
}

static int plant_dma(void)
{
	struct platform_device *pdev;
	int ret;

	pdev = platform_device_register_simple("pvrdma_planted", -1, NULL, 0);
	if (IS_ERR(pdev))
		return PTR_ERR(pdev);
	ret = dma_coerce_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(32));
	if (!ret)
		dma_unmap_single(&pdev->dev, 0x5000, 64, DMA_TO_DEVICE);
	platform_device_unregister(pdev);
	return ret;
}

static int __init planted_init(void)
{
	static const struct {
		const char *name;
		bool seen;
		int (*plant)(void);
	} plants[] = {
		{ "lock", IS_ENABLED(CONFIG_PROVE_LOCKING), plant_lock },
		{ "sleep", IS_ENABLED(CONFIG_DEBUG_ATOMIC_SLEEP), plant_sleep },
		{ "freed", IS_ENABLED(CONFIG_KASAN), plant_freed },
		{ "object", IS_ENABLED(CONFIG_DEBUG_OBJECTS_FREE), plant_object },
		{ "dma", IS_ENABLED(CONFIG_DMA_API_DEBUG), plant_dma },
	};
	int i, ret;

	for (i = 0; i < ARRAY_SIZE(plants); i++) {
		if (!sysfs_streq(what, plants[i].name))
			continue;
		if (!plants[i].seen)
			return -EOPNOTSUPP;
		ret = plants[i].plant();
		return ret ? ret : -ECANCELED;
	}
	return -EINVAL;
}

module_init(planted_init);
MODULE_DESCRIPTION("Mistakes for a debugging kernel to find");
MODULE_LICENSE("Dual BSD/GPL");
